"""The directory that comes first on PYTHONPATH in what a worker starts; `bootstrap` puts it there."""
