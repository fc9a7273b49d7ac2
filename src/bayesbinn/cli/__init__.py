"""The command line. Nothing is imported here: the commands of the runtime need neither typer nor torch."""
