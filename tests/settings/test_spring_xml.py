from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.embedded.config_xml import NodeConfig, NodePorts, node_xml
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.settings.spring_xml import looks_like_xml, read_spring_xml

XMLNS = 'xmlns="http://www.springframework.org/schema/beans"'
CONFIGURATION = "org.apache.ignite.configuration.IgniteConfiguration"
FINDER = "org.apache.ignite.spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder"
CONNECTOR = "org.apache.ignite.configuration.ClientConnectorConfiguration"
INSTEAD = r"\[cluster\] addresses"


def read(body: str, attributes: str = XMLNS):
    text = f'<?xml version="1.0" encoding="UTF-8"?><beans {attributes}>{body}</beans>'
    return read_spring_xml(text.encode(), "ignite.xml")


def finder(*addresses: str, kind: str = "list", java_class: str = FINDER) -> str:
    values = "".join(f"<value>{address}</value>" for address in addresses)
    return (
        f'<bean class="{java_class}"><property name="addresses"><{kind}>{values}</{kind}></property></bean>'
    )


def node(discovery: str, connector: str = "") -> str:
    """Return the beans of a node, nested as in Ignite's documentation."""
    return f"""
    <bean id="ignite.cfg" class="{CONFIGURATION}">
      <!-- a comment -->
      <property name="clientConnectorConfiguration">{connector}</property>
      <property name="discoverySpi"><bean class="org.apache.ignite.spi.discovery.tcp.TcpDiscoverySpi">
        <property name="ipFinder">{discovery}</property></bean></property>
    </bean>"""


def test_a_node_of_the_documentation():
    connector = f'<bean class="{CONNECTOR}"><property name="port" value="10900"/></bean>'
    found = read(
        node(finder("10.0.0.1:47500..47509", "db2:47500", " db3 ", "[fd00::1]:47500..47501"), connector)
    )
    assert found.endpoints == (("10.0.0.1", 10900), ("db2", 10900), ("db3", 10900), ("fd00::1", 10900))
    assert found.notes == ()


@pytest.mark.parametrize("kind", ["list", "set", "array"])
def test_collections(kind):
    assert read(finder("a", "b", "a:47501", kind=kind)).endpoints == (("a", 10800), ("b", 10800))


def test_other_ways_to_write_a_property():
    assert read(f'<bean class="{FINDER}"><property name="addresses" value="a:47500"/></bean>').endpoints == (
        ("a", 10800),
    )
    short = f'{XMLNS} xmlns:p="http://www.springframework.org/schema/p"'
    both = f'<bean class="{FINDER}" p:addresses="a:47500"/><bean class="{CONNECTOR}" p:port="1234"/>'
    assert read(both, short).endpoints == (("a", 1234),)
    util = f'{XMLNS} xmlns:util="http://www.springframework.org/schema/util"'
    assert read(finder("a", kind="util:list"), util).endpoints == (("a", 10800),)
    value = f'<bean class="{CONNECTOR}"><property name="port"><value>77</value></property></bean>'
    assert read(finder("a") + value).endpoints == (("a", 77),)
    assert read(finder("a"), "").endpoints == (("a", 10800),)


def test_a_multicast_finder_with_addresses():
    java_class = "org.apache.ignite.spi.discovery.tcp.ipfinder.multicast.TcpDiscoveryMulticastIpFinder"
    assert read(finder("a", java_class=java_class)).endpoints == (("a", 10800),)


def test_a_thin_client_names_endpoints():
    bean = (
        '<bean class="org.apache.ignite.configuration.ClientConfiguration"><property name="addresses"><list>'
        "<value>a:10801</value><value>b:10800..10802</value><value>c</value></list></property>"
        '<property name="userName" value="u"/><property name="sslMode" value="REQUIRED"/></bean>'
    )
    found = read(bean + finder("other"))
    assert found.endpoints == (("a", 10801), *(("b", port) for port in (10800, 10801, 10802)), ("c", 10800))
    assert "TLS" in found.notes[0]
    assert "credentials_file" in found.notes[1]


def test_what_the_embedded_cluster_writes():
    ports = NodePorts(client=10801, discovery=21001, communication=22001)
    xml = node_xml(
        NodeConfig(1, ports, (21000, 21001), Path("/work"), 1 << 30, persist=True, authentication=True)
    )
    found = read_spring_xml(xml.encode(), "node.xml")
    assert found.endpoints == (("127.0.0.1", 10801),)
    assert ["credentials_file" in note for note in found.notes] == [True]


def test_protection_is_told_and_not_guessed():
    connector = (
        f'<bean class="{CONNECTOR}"><property name="sslEnabled" value="true"/>'
        '<property name="sslClientAuth" value="TRUE"/></bean>'
    )
    notes = read(node(finder("a"), connector)).notes
    assert ["cafile" in notes[0], "certfile" in notes[1], len(notes)] == [True, True, 2]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            finder("${IGNITE_HOST}:47500"),
            r"'\$\{IGNITE_HOST\}:47500' stands for is known only where the node runs",
        ),
        (finder("#{systemEnvironment['H']}"), "known only where the node runs"),
        (finder("a:47500,b:47500"), "one in each <value>"),
        (finder("a:x"), "not an address"),
        (finder(""), "not an address"),
        ("", f"ignite.xml names no discovery address; .*{INSTEAD}"),
        (
            '<bean class="org.apache.ignite.spi.discovery.tcp.ipfinder.kubernetes.TcpDiscoveryKubernetesIpFinder"/>',
            r"no discovery address \(TcpDiscoveryKubernetesIpFinder finds",
        ),
        (
            finder("a") + f'<bean class="{CONNECTOR}"><property name="port" value="${{P}}"/></bean>',
            "a port number",
        ),
        (
            finder("a") + f'<bean class="{CONNECTOR}"><property name="port" value="0"/></bean>',
            "a port number",
        ),
        (node(finder("a"), "<null/>"), "turns thin clients off"),
    ],
)
def test_what_cannot_be_read_says_what_to_write(body, message):
    with pytest.raises(ConfigError, match=message):
        read(body)


BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "&%c;&%c;">' % (c + 1, c, c) for c in range(97, 110))
    + b"]><beans>&n;</beans>"
)


@pytest.mark.parametrize(
    "data",
    [
        BOMB,
        b'<!DOCTYPE beans SYSTEM "file:///etc/passwd"><beans/>',
        b'<!DOCTYPE b [<!ENTITY x SYSTEM "file:///etc/passwd">]><beans><bean class="&x;"/></beans>',
        b'<!DOCTYPE b [<!ENTITY % p SYSTEM "http://127.0.0.1:1/x"> %p;]><beans/>',
        '<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE beans [<!ENTITY a "b">]><beans/>'.encode("utf-16"),
    ],
)
def test_a_document_type_is_refused(data):
    assert looks_like_xml(data)
    with pytest.raises(ConfigError, match="document type.*remove it"):
        read_spring_xml(data, "evil.xml")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<beans>", "not XML that can be read"),
        (b"<html/>", "begins with <html>"),
        (b"<beans>&unknown;</beans>", "not XML"),
        (b'<?xml version="1.0" encoding="no-such"?><beans/>', "not XML"),
    ],
)
def test_other_files(data, message):
    with pytest.raises(ConfigError, match=message):
        read_spring_xml(data, "x.xml")


@given(st.binary(max_size=60))
def test_any_bytes_give_addresses_or_a_clear_error(data):
    with pytest.raises(ConfigError):
        read_spring_xml(b"<beans>" + data, "x.xml")


@pytest.mark.parametrize("data", [b'[cluster]\naddresses = ["a"]', b"", b"\xef\xbb\xbf# <not>"])
def test_toml_does_not_look_like_xml(data):
    assert not looks_like_xml(data)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-8"])
def test_xml_in_any_encoding(encoding):
    text = f"\n<beans {XMLNS}>{finder('dб')}</beans>"
    assert looks_like_xml(text.encode(encoding))
    assert read_spring_xml(text.encode(encoding), "x").endpoints == (("dб", 10800),)
