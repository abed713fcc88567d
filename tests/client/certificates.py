"""A certificate authority for one test: PEM files for the client, PKCS12 stores for the nodes."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

PASSWORD = "change me"


@dataclass(frozen=True)
class Certificates:
    ca_pem: Path
    cert_pem: Path
    encrypted_key: Path
    single_pem: Path
    keystore: Path
    truststore: Path
    password: str = PASSWORD

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        ca_key, ca = _issue("test authority", None, None)
        key, cert = _issue("localhost", ca_key, ca)
        paths = cls(
            *(folder / n for n in ("ca.pem", "cert.pem", "key.pem", "all.pem", "node.p12", "trust.p12"))
        )
        pem = serialization.Encoding.PEM
        form = serialization.PrivateFormat.PKCS8
        secret = serialization.BestAvailableEncryption(PASSWORD.encode())
        paths.ca_pem.write_bytes(ca.public_bytes(pem))
        paths.cert_pem.write_bytes(cert.public_bytes(pem))
        paths.encrypted_key.write_bytes(key.private_bytes(pem, form, secret))
        plain = key.private_bytes(pem, form, serialization.NoEncryption())
        paths.single_pem.write_bytes(cert.public_bytes(pem) + plain + ca.public_bytes(pem))
        paths.single_pem.chmod(0o600)
        paths.keystore.write_bytes(pkcs12.serialize_key_and_certificates(b"node", key, cert, [ca], secret))
        trusted = [pkcs12.PKCS12Certificate(ca, b"ca")]
        paths.truststore.write_bytes(pkcs12.serialize_java_truststore(trusted, secret))
        return paths


def _issue(name: str, ca_key: ec.EllipticCurvePrivateKey | None, ca: x509.Certificate | None):
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.timezone.utc)
    names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.subject if ca else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=ca is None, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    issuer_key = ca_key or key
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
    )
    if ca is None:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    return key, builder.sign(issuer_key, hashes.SHA256())
