"""Every type that Java can store, read and written in every way, matches docs/types.md."""

from __future__ import annotations

import copy
import pickle

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.protocol.affinity import encoded
from tests.client.java_types import DOCUMENT, HEAP, Java, measured, values_at


def test_what_java_puts_is_read_and_written_as_the_document_says(new_cluster, tmp_path):
    options = new_cluster(num_nodes=1, heap=HEAP).connect_options
    java = Java(options.endpoints[0])
    try:
        with connect(options) as client:
            found = measured(client, options, java)
            for case in java.cases:  # a copied cache reads the same
                for value in values_at(client, case, "field"):
                    for again in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
                        assert encoded(again) == encoded(value), case.name
    finally:
        java.close()
    (tmp_path / "types.md").write_text(found)
    assert found == DOCUMENT.read_text(), f"write it again: make types; or look at {tmp_path}/types.md"
