"""Generates the Spring XML that configures one node. Pure functions: values in, text out."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ignite_tf_magic.embedded.options import NodeTls

LOOPBACK = "127.0.0.1"

_BEANS = "http://www.springframework.org/schema/beans"
_IGNITE = "org.apache.ignite."
# Ignite's default of 32 KiB holds one loopback packet. With rows of 1 MiB the sender then waits 0.2 s for every packet.
_SOCKET_BUFFER_BYTES = 2 * 1024 * 1024
_FAILURE_DETECTION_MS = 30_000
"""A killed node is seen at once, because its sockets close. This limit is for a node that hangs; on a
machine whose cores all train, a shorter one would take a starved node for a dead one."""


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The three ports on which one node listens."""

    client: int
    discovery: int
    communication: int


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The settings in the configuration of one node.

    Attributes:
        discovery_ports: The discovery ports of all nodes of the cluster, including this one.
    """

    index: int
    ports: NodePorts
    discovery_ports: tuple[int, ...]
    work_directory: Path
    region_bytes: int
    persist: bool = False
    authentication: bool = False
    tls: NodeTls | None = None


def node_xml(node: NodeConfig) -> str:
    """Return the configuration of a node for Ignite's command line start.

    The result may contain passwords of key stores: keep it in a file of mode 0600.
    """
    root = ET.Element(
        "beans",
        {
            "xmlns": _BEANS,
            "xmlns:xsi": "http://www.w3.org/2001/XMLSchema-instance",
            "xsi:schemaLocation": f"{_BEANS} {_BEANS}/spring-beans.xsd",
        },
    )
    name = f"node-{node.index}"
    root.append(
        _bean(
            "configuration.IgniteConfiguration",
            igniteInstanceName=name,
            consistentId=name,
            localHost=LOOPBACK,
            workDirectory=str(node.work_directory),
            discoverySpi=_discovery(node),
            communicationSpi=_bean(
                "spi.communication.tcp.TcpCommunicationSpi",
                localPort=node.ports.communication,
                localPortRange=0,
                socketReceiveBuffer=_SOCKET_BUFFER_BYTES,
                socketSendBuffer=_SOCKET_BUFFER_BYTES,
            ),
            clientConnectorConfiguration=_client_connector(node),
            connectorConfiguration=ET.Element("null"),
            dataStorageConfiguration=_storage(node),
            authenticationEnabled=node.authentication,
            failureDetectionTimeout=_FAILURE_DETECTION_MS,
            metricsLogFrequency=0,
        )
    )
    return ET.tostring(root, encoding="unicode")


def with_ports(xml: str, ports: NodePorts, discovery_ports: Sequence[int]) -> str:
    """Return a node's configuration with new ports of its own and new discovery ports of all nodes."""
    ET.register_namespace("", _BEANS)
    root = ET.fromstring(xml)  # noqa: S314 what `node_xml` wrote
    discovery = _property(root, "spi.discovery.tcp.TcpDiscoverySpi", "localPort")
    (addresses,) = _property(root, "spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder", "addresses")
    for address, port in zip(addresses, discovery_ports, strict=True):
        address.text = f"{LOOPBACK}:{port}"
    discovery.set("value", str(ports.discovery))
    communication = _property(root, "spi.communication.tcp.TcpCommunicationSpi", "localPort")
    communication.set("value", str(ports.communication))
    client = _property(root, "configuration.ClientConnectorConfiguration", "port")
    client.set("value", str(ports.client))
    return ET.tostring(root, encoding="unicode")


def _property(root: ET.Element, java_class: str, name: str) -> ET.Element:
    path = f".//{{{_BEANS}}}bean[@class='{_IGNITE}{java_class}']/{{{_BEANS}}}property[@name='{name}']"
    found = root.find(path)
    if found is None:
        raise ValueError(f"the configuration has no {java_class}.{name}")
    return found


def _discovery(node: NodeConfig) -> ET.Element:
    addresses = ET.Element("list")
    for (
        port
    ) in node.discovery_ports:  # one element per address, because Ignite does not split a comma-joined string
        ET.SubElement(addresses, "value").text = f"{LOOPBACK}:{port}"
    finder = _bean("spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder", addresses=addresses)
    return _bean(
        "spi.discovery.tcp.TcpDiscoverySpi",
        localPort=node.ports.discovery,
        localPortRange=0,
        ipFinder=finder,
    )


def _client_connector(node: NodeConfig) -> ET.Element:
    bean = _bean(
        "configuration.ClientConnectorConfiguration",
        host=LOOPBACK,
        port=node.ports.client,
        portRange=0,
    )
    if node.tls is not None:
        factory = _bean(
            "ssl.SslContextFactory",
            keyStoreType="PKCS12",
            keyStoreFilePath=node.tls.keystore,
            keyStorePassword=node.tls.keystore_password,
            trustStoreType="PKCS12",
            trustStoreFilePath=node.tls.truststore,
            trustStorePassword=node.tls.truststore_password,
        )
        _set(bean, "sslEnabled", True)
        _set(bean, "sslClientAuth", node.tls.require_client_certificate)
        _set(bean, "useIgniteSslContextFactory", False)
        _set(bean, "sslContextFactory", factory)
    return bean


def _storage(node: NodeConfig) -> ET.Element:
    region = _bean(
        "configuration.DataRegionConfiguration",
        name="default",
        maxSize=node.region_bytes,
        initialSize=min(64 << 20, node.region_bytes),
        persistenceEnabled=node.persist,
    )
    bean = _bean("configuration.DataStorageConfiguration", defaultDataRegionConfiguration=region)
    if node.persist:
        # Ignite's default write-ahead log takes 640 MB of disk per node before the first row.
        _set(bean, "walSegmentSize", 32 << 20)
        _set(bean, "walSegments", 4)
        _set(bean, "maxWalArchiveSize", 256 << 20)
    return bean


def _bean(java_class: str, **properties: str | int | bool | ET.Element) -> ET.Element:
    bean = ET.Element("bean", {"class": _IGNITE + java_class})
    for name, value in properties.items():
        _set(bean, name, value)
    return bean


def _set(bean: ET.Element, name: str, value: str | int | bool | ET.Element) -> None:
    element = ET.SubElement(bean, "property", {"name": name})
    if isinstance(value, ET.Element):
        element.append(value)
    else:
        element.set("value", str(value).lower() if isinstance(value, bool) else str(value))
