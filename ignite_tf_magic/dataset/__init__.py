"""`IgniteDataset`: a cache as a tf.data source.

Rows reach tf.data in two ways: by `generator`, in the process that makes a dataset, or by record files
(`tfrecord_files`, served by the file-system plugin), in any process that runs the dataset's operations.

In import order, the modules from `options` to `tfrecord_files` do not import TensorFlow; later modules do.
"""
