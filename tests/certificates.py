"""An authority, a node and a client with certificates, made anew for a test session."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from ignite_tf_magic.config import TlsOptions
from ignite_tf_magic.embedded import NodeTls

PASSWORD = "for-tests-only"


def make_node_tls(folder: Path) -> NodeTls:
    """Write key.p12 and trust.p12 for nodes, client.pem (key, certificate and authority) for clients.

    Nodes ask for a client certificate but take a client without one.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _sign("test authority", authority_key, None, authority_key)
    node_key = ec.generate_private_key(ec.SECP256R1())
    node = _sign("node", node_key, authority, authority_key)
    client_key = ec.generate_private_key(ec.SECP256R1())
    client = _sign("client", client_key, authority, authority_key)

    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    keystore = pkcs12.serialize_key_and_certificates(b"node", node_key, node, [authority], encryption)
    truststore = pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(authority, b"authority")], encryption
    )
    (folder / "key.p12").write_bytes(keystore)
    (folder / "trust.p12").write_bytes(truststore)
    (folder / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    key_pem = client_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pems = [key_pem, *(each.public_bytes(serialization.Encoding.PEM) for each in (client, authority))]
    (folder / "client.pem").write_bytes(b"".join(pems))
    return NodeTls(
        keystore=str(folder / "key.p12"),
        keystore_password=PASSWORD,
        truststore=str(folder / "trust.p12"),
        truststore_password=PASSWORD,
        client=TlsOptions(certfile=str(folder / "client.pem"), cafile=str(folder / "ca.pem")),
    )


def _sign(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )
    if issuer:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
