"""`IgniteDataset`: a cache as a tf.data source.

`options` and `reader` know no TensorFlow; `paged` and `ignite` are the only modules that import it.
"""
