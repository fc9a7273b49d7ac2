"""The model file: bits, graph and container. Nothing here imports torch."""
