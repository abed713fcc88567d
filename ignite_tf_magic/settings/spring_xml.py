"""Reads addresses for thin clients from Ignite's own Spring XML. Pure: bytes in, values out.

Only the text of the file is read: no imports are followed, no beans are created, no placeholders are filled in. A
document type is rejected before anything is expanded, because it can declare entities.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ignite_tf_magic.errors import ConfigError

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET

_CLIENT_PORT = 10800
_INSTEAD = 'write the addresses in ignite-tf.toml instead: [cluster] addresses = ["HOST:10800"]'
_CONNECTOR = "ClientConnectorConfiguration"
_FINDERS = {"TcpDiscoveryVmIpFinder", "TcpDiscoveryMulticastIpFinder"}
_ADDRESS = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:,\[\]]+)(?::(?P<first>\d{1,5})(?:\.\.(?P<last>\d{1,5}))?)?"
)


@dataclass(frozen=True, slots=True)
class IgniteXml:
    """The endpoints of thin clients in an XML file of Ignite.

    Attributes:
        endpoints: Host and port of client connectors, in the order of the file.
        notes: Lines about what the file demands of clients, which they must configure elsewhere.
    """

    endpoints: tuple[tuple[str, int], ...]
    notes: tuple[str, ...] = ()


def looks_like_xml(data: bytes) -> bool:
    """Return whether data is XML and not TOML, in any encoding that XML may have."""
    return data.lstrip(b"\xef\xbb\xbf\xff\xfe\x00 \t\r\n")[:1] == b"<"


def read_spring_xml(data: bytes, name: str) -> IgniteXml:
    """Read the configuration of a node, or of a thin client.

    A node's configuration names the discovery addresses of all nodes and the port for thin clients. A thin client's
    (`ClientConfiguration`) names the endpoints themselves.

    Args:
        data: The file's content.
        name: The name of the file in error messages.

    Raises:
        ConfigError: The data is not such a file, or it contains no address.
    """
    root = _parse(data, name)
    beans = list(_beans(root))
    notes = tuple(_notes(beans, name))
    addresses = [
        endpoint
        for bean in _of_class(beans, "ClientConfiguration")
        for text in _texts(bean, "addresses")
        for endpoint in _client_endpoints(text, name)
    ]
    if not addresses:
        port = _client_port(beans, name)
        finders = [bean for each in sorted(_FINDERS) for bean in _of_class(beans, each)]
        texts = [text for bean in finders for text in _texts(bean, "addresses")]
        addresses = [(_address(text, name)[0], port) for text in texts]
    if not addresses:
        raise ConfigError(f"{name} names no discovery address{_other_finders(beans)}; {_INSTEAD}")
    return IgniteXml(tuple(dict.fromkeys(addresses)), notes)


def _parse(data: bytes, name: str) -> ET.Element:
    import xml.etree.ElementTree as ET
    from xml.parsers import expat

    def refuse(*_: object) -> None:
        raise ConfigError(
            f"{name} has a document type (<!DOCTYPE ...>), which can make a reader expand or fetch anything; "
            f"remove it (Spring needs only the xmlns attributes of <beans>), or {_INSTEAD}"
        )

    checker = expat.ParserCreate()
    checker.StartDoctypeDeclHandler = refuse
    try:
        checker.Parse(data, True)
        root = ET.fromstring(data)  # noqa: S314 without a document type there is nothing to expand
    except (expat.ExpatError, ET.ParseError, LookupError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name} is not XML that can be read: {error}") from error
    if _local(root.tag) not in ("beans", "bean"):
        raise ConfigError(f"{name} begins with <{_local(root.tag)}>; Ignite's Spring XML begins with <beans>")
    return root


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _beans(root: ET.Element) -> Iterator[ET.Element]:
    return (
        element for element in root.iter() if isinstance(element.tag, str) and _local(element.tag) == "bean"
    )


def _of_class(beans: list[ET.Element], java_class: str) -> list[ET.Element]:
    return [bean for bean in beans if bean.get("class", "").strip().rpartition(".")[2] == java_class]


def _property(bean: ET.Element, name: str) -> ET.Element | None:
    for child in bean:
        if _local(child.tag) == "property" and child.get("name") == name:
            return child
    return None


def _texts(bean: ET.Element, name: str) -> list[str]:
    """Return the values of a property: an attribute, one <value>, or those of a list, set or array."""
    short = next((value for key, value in bean.attrib.items() if key.endswith(f"/p}}{name}")), None)
    if short is not None:
        return [short.strip()]
    element = _property(bean, name)
    if element is None:
        return []
    if (value := element.get("value")) is not None:
        return [value.strip()]
    return [(each.text or "").strip() for each in element.iter() if _local(each.tag) == "value"]


def _text(bean: ET.Element, name: str) -> str:
    return next(iter(_texts(bean, name)), "")


def _is_true(bean: ET.Element, name: str) -> bool:
    return _text(bean, name).lower() == "true"


def _address(text: str, name: str) -> tuple[str, int | None, int | None]:
    """Read "host", "host:47500" or "host:47500..47509"."""
    if "${" in text or "#{" in text:
        raise ConfigError(f"{name}: what {text!r} stands for is known only where the node runs; {_INSTEAD}")
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{name}: {text!r} is not an address; HOST, HOST:PORT or HOST:FIRST..LAST is needed, one in each <value>"
        )
    first, last = (int(match[each]) if match[each] else None for each in ("first", "last"))
    return match["host"].strip("[]"), first, last


def _client_endpoints(text: str, name: str) -> list[tuple[str, int]]:
    host, first, last = _address(text, name)
    start = first or _CLIENT_PORT
    return [(host, port) for port in range(start, min(last or start, start + 99) + 1)]


def _client_port(beans: list[ET.Element], name: str) -> int:
    for bean in beans:
        element = _property(bean, "clientConnectorConfiguration")
        if element is not None and any(_local(child.tag) == "null" for child in element):
            raise ConfigError(
                f"{name} turns thin clients off (clientConnectorConfiguration is null); turn them on"
            )
    connector = next(iter(_of_class(beans, _CONNECTOR)), None)
    text = _text(connector, "port") if connector is not None else ""
    if not text:
        return _CLIENT_PORT
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise ConfigError(f"{name}: {_CONNECTOR}'s port is {text!r}, and a port number is needed; {_INSTEAD}")
    return int(text)


def _notes(beans: list[ET.Element], name: str) -> Iterator[str]:
    if any(_is_true(bean, "sslEnabled") for bean in _of_class(beans, _CONNECTOR)):
        yield (
            f"{name}: clients must use TLS (sslEnabled). Key stores of Java are not read here: name PEM files in "
            "ignite-tf.toml, [cluster] cafile, certfile, keyfile"
        )
    if any(_text(bean, "sslMode") == "REQUIRED" for bean in _of_class(beans, "ClientConfiguration")):
        yield f"{name}: clients must use TLS (sslMode): name PEM files in ignite-tf.toml, [cluster] cafile, certfile"
    if any(_is_true(bean, "sslClientAuth") for bean in _of_class(beans, _CONNECTOR)):
        yield f"{name}: clients must show a certificate (sslClientAuth): [cluster] certfile in ignite-tf.toml"
    named = any(_text(bean, "userName") for bean in _of_class(beans, "ClientConfiguration"))
    if named or any(_is_true(bean, "authenticationEnabled") for bean in beans):
        yield (
            f"{name}: users must log in: [cluster] credentials_file in ignite-tf.toml names "
            "a private JSON file with username and password"
        )


def _other_finders(beans: list[ET.Element]) -> str:
    classes = {bean.get("class", "").rpartition(".")[2] for bean in beans}
    finders = sorted(each for each in classes if each.endswith(("IpFinder", "DiscoverySpi")))
    return f" ({', '.join(finders)} finds nodes in another way)" if finders else ""
