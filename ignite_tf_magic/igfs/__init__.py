"""igfs://, a file system kept in the caches of an Ignite cluster.

Pure: `paths`, `layout`, `names`, `journal`. Rows and transactions: `store`, `tree`, `block_writer`. For users:
`reader`, `writer`, `filesystem` (fsspec), `tensorflow_files` (TensorFlow's plugin).
"""
