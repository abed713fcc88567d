"""The first directory on PYTHONPATH in processes that a worker starts; `bootstrap` puts it there."""
