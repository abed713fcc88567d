"""The Ignite node of a bed's host, configured as on a cluster of machines, with Ignite's default ports."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import escape

from ignite_tf_magic.embedded import EmbeddedOptions
from ignite_tf_magic.embedded.jars import resolve_jars
from ignite_tf_magic.embedded.java import find_java
from ignite_tf_magic.embedded.nodes import Installation, java_command
from ignite_tf_magic.embedded.starting import quickened

DISCOVERY_PORT = 47500
_HEAP = "256m"
_STARTED = re.compile(r"Node started :|Ignite node started OK")
_TOPOLOGY = re.compile(r"Topology snapshot \[ver=(\d+),.*?servers=(\d+)")

_XML = """<beans xmlns="http://www.springframework.org/schema/beans"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="http://www.springframework.org/schema/beans
    http://www.springframework.org/schema/beans/spring-beans.xsd">
<bean class="org.apache.ignite.configuration.IgniteConfiguration">
  <property name="consistentId" value="{name}"/>
  <property name="localHost" value="{address}"/>
  <property name="workDirectory" value="{work}"/>
  <property name="failureDetectionTimeout" value="{failure_detection_ms}"/>
  <property name="segmentationPolicy" value="{segmentation}"/>
  <property name="metricsLogFrequency" value="0"/>
  <property name="connectorConfiguration"><null/></property>
  <property name="discoverySpi"><bean class="org.apache.ignite.spi.discovery.tcp.TcpDiscoverySpi">
    <property name="localPort" value="{port}"/>
    <property name="localPortRange" value="0"/>
    <property name="ipFinder"><bean class="org.apache.ignite.spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder">
      <property name="addresses"><list>{addresses}</list></property>
    </bean></property>
  </bean></property>
  <property name="clientConnectorConfiguration">
    <bean class="org.apache.ignite.configuration.ClientConnectorConfiguration">
      <property name="host" value="{address}"/>
      <property name="portRange" value="0"/>
    </bean>
  </property>
  <property name="dataStorageConfiguration"><bean class="org.apache.ignite.configuration.DataStorageConfiguration">
    <property name="defaultDataRegionConfiguration">
      <bean class="org.apache.ignite.configuration.DataRegionConfiguration">
        <property name="name" value="default"/>
        <property name="initialSize" value="33554432"/>
        <property name="maxSize" value="134217728"/>
      </bean>
    </property>
  </bean></property>
</bean>
</beans>
"""


def node_xml(
    name: str, address: str, others: Sequence[str], work: Path, failure_detection_s: float, segmentation: str
) -> str:
    """Return a node's configuration. `others` are the addresses searched for a cluster, including the node's own."""
    return _XML.format(
        name=name,
        address=address,
        work=escape(str(work)),
        failure_detection_ms=round(failure_detection_s * 1000),
        segmentation=segmentation,
        port=DISCOVERY_PORT,
        addresses="".join(f"<value>{other}:{DISCOVERY_PORT}</value>" for other in others),
    )


def installation() -> Installation:
    """Return Java and Ignite with the class archive of embedded nodes, which halves a node's start time."""
    version = EmbeddedOptions().resolved_version()
    bare = Installation(find_java(version), resolve_jars(version, print))
    with tempfile.TemporaryDirectory(prefix="archive-") as home:
        quick = quickened(bare, Path(home), print)
    # A bed's node lives for minutes at most. The second JIT compiler would take a third of its processor time.
    options = (*quick.java_options, "-XX:TieredStopAtLevel=1", "-XX:MaxDirectMemorySize=64m")
    return replace(quick, java_options=options)


def read_paths(found: Installation) -> tuple[Path, ...]:
    """Return the directories of this machine that a node reads."""
    return Path(found.java.path).resolve().parents[1], found.jars[0].parent


def command(found: Installation, config: Path) -> list[str]:
    return java_command(found, _HEAP, config)


def has_joined(log: str, num_servers: int) -> bool:
    """Return whether the log shows that its node is up and has seen at least `num_servers` nodes, including itself."""
    sizes = [(int(version), int(servers)) for version, servers in _TOPOLOGY.findall(log)]
    return _STARTED.search(log) is not None and max(sizes, default=(0, 0))[1] >= num_servers
