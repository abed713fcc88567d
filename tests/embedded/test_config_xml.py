from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

from ignite_tf_magic.embedded import NodeTls
from ignite_tf_magic.embedded.config_xml import NodeConfig, NodePorts, node_xml, with_ports
from ignite_tf_magic.settings.options import TlsOptions

PLAIN = NodeConfig(
    index=1,
    ports=NodePorts(client=10801, discovery=21001, communication=22001),
    discovery_ports=(21000, 21001, 21002),
    work_directory=Path("/home/someone/node-1/work"),
    region_bytes=1 << 30,
)
NAMESPACE = "{http://www.springframework.org/schema/beans}"


def beans(node: NodeConfig) -> dict[str, dict[str, ET.Element]]:
    """Return the properties of the beans, by the bean's short class name."""
    root = ET.fromstring(node_xml(node))
    return {
        bean.attrib["class"].rpartition(".")[2]: {
            each.attrib["name"]: each for each in bean.findall(f"{NAMESPACE}property")
        }
        for bean in root.iter(f"{NAMESPACE}bean")
    }


def values(properties: dict[str, ET.Element]) -> dict[str, str]:
    return {name: each.attrib["value"] for name, each in properties.items() if "value" in each.attrib}


def test_each_discovery_address_is_a_value_of_its_own():
    addresses = beans(PLAIN)["TcpDiscoveryVmIpFinder"]["addresses"]
    found = [value.text for value in addresses.iter(f"{NAMESPACE}value")]
    assert found == ["127.0.0.1:21000", "127.0.0.1:21001", "127.0.0.1:21002"]


def test_every_listener_is_on_loopback_at_its_port_and_never_at_the_next_one():
    found = beans(PLAIN)
    assert values(found["IgniteConfiguration"])["localHost"] == "127.0.0.1"
    client = values(found["ClientConnectorConfiguration"])
    assert (client["host"], client["port"], client["portRange"]) == ("127.0.0.1", "10801", "0")
    discovery = values(found["TcpDiscoverySpi"])
    assert (discovery["localPort"], discovery["localPortRange"]) == ("21001", "0")
    communication = values(found["TcpCommunicationSpi"])
    assert (communication["localPort"], communication["localPortRange"]) == ("22001", "0")


def test_the_rest_connector_is_off():
    connector = beans(PLAIN)["IgniteConfiguration"]["connectorConfiguration"]
    assert [child.tag for child in connector] == [f"{NAMESPACE}null"]


def test_persistence_and_authentication_are_off_unless_asked_for():
    assert values(beans(PLAIN)["DataRegionConfiguration"])["persistenceEnabled"] == "false"
    assert values(beans(PLAIN)["IgniteConfiguration"])["authenticationEnabled"] == "false"
    asked = beans(replace(PLAIN, persist=True, authentication=True))
    assert values(asked["DataRegionConfiguration"])["persistenceEnabled"] == "true"
    assert values(asked["IgniteConfiguration"])["authenticationEnabled"] == "true"


def test_a_region_smaller_than_the_usual_first_piece_is_not_exceeded():
    region = values(beans(replace(PLAIN, region_bytes=40 << 20))["DataRegionConfiguration"])
    assert int(region["initialSize"]) <= int(region["maxSize"]) == 40 << 20


def test_paths_and_passwords_with_the_signs_of_xml_arrive_whole():
    tls = NodeTls(
        "/a&b/key<1>.p12", 'pass"word&', "/t.p12", "<'>", TlsOptions(), require_client_certificate=True
    )
    found = beans(replace(PLAIN, tls=tls, work_directory=Path("/with space/<&>")))
    factory = values(found["SslContextFactory"])
    assert factory["keyStoreFilePath"] == "/a&b/key<1>.p12"
    assert factory["keyStorePassword"] == 'pass"word&'
    assert factory["trustStorePassword"] == "<'>"
    assert values(found["ClientConnectorConfiguration"])["sslClientAuth"] == "true"
    assert values(found["IgniteConfiguration"])["workDirectory"] == "/with space/<&>"


def test_passwords_are_not_shown_with_the_options():
    tls = NodeTls("k", "hush-key", "t", "hush-trust", TlsOptions())
    assert "hush" not in repr(replace(PLAIN, tls=tls))


def test_other_ports_take_the_place_of_the_old_ones_everywhere_and_of_nothing_else():
    other, discovery_ports = (
        NodePorts(client=10900, discovery=23000, communication=24000),
        (22000, 23000, 21002),
    )
    moved = replace(PLAIN, ports=other, discovery_ports=discovery_ports)
    assert ET.canonicalize(with_ports(node_xml(PLAIN), other, discovery_ports)) == ET.canonicalize(
        node_xml(moved)
    )
