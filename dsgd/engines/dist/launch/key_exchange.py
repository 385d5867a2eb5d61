"""Hand a secret to another process through a place that strangers can read.

The reader publishes a public key, and the secret is sealed for it in a sealed box of libsodium (X25519,
XSalsa20-Poly1305). It keeps readers out. Who can also change what the two sides read can take the place of one of them:
nothing here says who a public key belongs to.
"""

from __future__ import annotations

import hashlib

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox


class NotSealed(ValueError):
    """Raised for a public key that is none, and for a sealed secret that has been changed or is for somebody else."""


def public_key(private: PrivateKey) -> str:
    """Return the public key of a private one, in hexadecimal, for everybody to read."""
    return bytes(private.public_key).hex()


def seal(secret: bytes, public: str, context: str) -> str:
    """Seal a secret for the owner of a public key; returns hexadecimal. Raises NotSealed.

    context: what the secret is for; who opens it must name the same."""
    if len(public) != 2 * PublicKey.SIZE:
        raise NotSealed(f"a public key must have {2 * PublicKey.SIZE} digits, got {len(public)}")
    try:
        box = SealedBox(PublicKey(bytes.fromhex(public)))
    except ValueError as error:
        raise NotSealed("a public key must be hexadecimal") from error
    try:
        return box.encrypt(_digest(context) + secret).hex()
    except CryptoError as error:
        raise NotSealed("a public key must be of the large order") from error


def unseal(sealed: str, private: PrivateKey, context: str) -> bytes:
    """Return the secret that was sealed for this side. Raises NotSealed."""
    try:
        content = bytes.fromhex(sealed)
    except ValueError as error:
        raise NotSealed("a sealed secret must be hexadecimal") from error
    digest = _digest(context)
    try:
        opened = SealedBox(private).decrypt(content)
    except CryptoError:
        opened = b""
    if not opened.startswith(digest):
        raise NotSealed("a sealed secret has been changed, or is for somebody else")
    return opened[len(digest) :]


def _digest(context: str) -> bytes:
    return hashlib.sha256(context.encode()).digest()
