"""A trust store for Java with the machine's certificates: the Java of a wheel lacks the root certificate of a company."""

from __future__ import annotations

import os
import re
import ssl
import warnings
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

STORE_PASSWORD = b"public"  # Java requires a password; the store holds only public certificates
CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def java_flags(scratch: Path) -> list[str]:
    """Write a trust store of the machine's certificates into `scratch`, and return the JVM flags; [] without a bundle."""
    bundle = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if not bundle or not Path(bundle).is_file():
        return []
    trusted = [pkcs12.PKCS12Certificate(found, None) for found in _certificates(Path(bundle).read_bytes())]
    store = scratch / "trusted.p12"
    store.write_bytes(pkcs12.serialize_java_truststore(trusted, BestAvailableEncryption(STORE_PASSWORD)))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={STORE_PASSWORD.decode()}"]


def _certificates(bundle: bytes) -> list[x509.Certificate]:
    """The valid certificates of the bundle. Loads each alone, because a malformed certificate would fail the whole bundle."""
    found = []
    with warnings.catch_warnings():
        # The user cannot change old roots with invalid serial numbers, which cause warnings.
        warnings.simplefilter("ignore")
        for text in CERTIFICATE.findall(bundle):
            try:
                found.append(x509.load_pem_x509_certificate(text))
            except ValueError:
                continue
    return found
