"""`IgniteDataset`: a cache as a tf.data source.

Two ways lead from rows to tf.data: `generator`, in the process that makes a dataset, and record files
(`tfrecord_files`, served by the file-system plugin), in any process that runs the dataset's operations.

From `options` to `tfrecord_files` nothing knows TensorFlow; the modules after that import it.
"""
