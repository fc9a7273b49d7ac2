"""Many runs: grids, searches, local processes and Dask."""
