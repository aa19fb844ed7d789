"""Certificates for tests: a certificate authority, and the certificates issued by it."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as keys
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

_VALID = datetime.timedelta(days=2)


@dataclass(frozen=True)
class Identity:
    """PEM files `chain` (certificate and authority), `key`, and `both` together; `pkcs12`: certificate and key, binary."""

    chain: Path
    key: Path
    both: Path
    pkcs12: Path
    public: ec.EllipticCurvePublicKey


class Authority:
    """A certificate authority for 127.0.0.1; all files are in `folder`."""

    def __init__(self, folder: Path, name: str = "the test's authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._certificate = self._signed(self._name, self._key.public_key(), authority=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(self._certificate.public_bytes(keys.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        shape: str = "PKCS8",
        password: str | None = None,
        address: str = "127.0.0.1",
        expired: bool = False,
    ) -> Identity:
        """Issue a certificate for `name` at `address`, with a key in the given format and password."""
        key = ec.generate_private_key(ec.SECP256R1())
        until = -_VALID / 2 if expired else _VALID
        certificate = self._signed(_name(name), key.public_key(), authority=False, address=address, until=until)
        lock = keys.BestAvailableEncryption(password.encode()) if password else keys.NoEncryption()
        chain = b"".join(one.public_bytes(keys.Encoding.PEM) for one in (certificate, self._certificate))
        pem = key.private_bytes(keys.Encoding.PEM, getattr(keys.PrivateFormat, shape), lock)
        packed = pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, [self._certificate], lock)
        files = {kind: self._folder / f"{name}.{kind}" for kind in ("chain", "key", "both", "p12")}
        made = Identity(files["chain"], files["key"], files["both"], files["p12"], key.public_key())
        for file, content in ((made.chain, chain), (made.key, pem), (made.both, pem + chain), (made.pkcs12, packed)):
            file.write_bytes(content)
        return made

    def _signed(
        self,
        name: x509.Name,
        public: ec.EllipticCurvePublicKey,
        *,
        authority: bool,
        address: str = "127.0.0.1",
        until: datetime.timedelta = _VALID,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _VALID)
            .not_valid_after(now + until)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(here, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
