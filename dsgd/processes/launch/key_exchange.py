"""Hand a secret to another process through a place that strangers can read.

Diffie-Hellman over ffdhe2048, the safe-prime group of 2048 bits of RFC 7919: both sides publish a public key, and what
they compute from it and their own private key is known to nobody else. The secret is sealed with keys that HMAC-SHA256
derives from that (RFC 5869). It keeps readers out. Who can also change what the two sides read can take the place of
one of them: nothing here says who a public key belongs to.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

PRIME = int(
    "ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695"
    "a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8f681b202aec4617a"
    "d3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935"
    "984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797a"
    "bc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4"
    "ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f61"
    "9172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005"
    "c58ef1837d1683b2c6f34a26c1b2effa886b423861285c97ffffffffffffffff",
    16,
)
GENERATOR = 2
KEY_BYTES = 256
EXPONENT_BITS = 256  # RFC 7919 asks for 225 or more
SECRET_BYTES = TAG_BYTES = hashlib.sha256().digest_size


class NotSealed(ValueError):
    """Raised for a public key that is none, and for a sealed secret that has been changed or is for somebody else."""


@dataclass(frozen=True)
class KeyPair:
    """One side of one exchange, not to be used for a second one. public: in hexadecimal, for everybody to read."""

    private: int
    public: str

    def shared_with(self, public: str) -> bytes:
        """Return the number that only this side and the owner of a public key can compute. Raises NotSealed."""
        if len(public) != 2 * KEY_BYTES:
            raise NotSealed(f"a public key must have {2 * KEY_BYTES} digits, got {len(public)}")
        try:
            theirs = int.from_bytes(bytes.fromhex(public))
        except ValueError as error:
            raise NotSealed("a public key must be hexadecimal") from error
        if not 2 <= theirs <= PRIME - 2:  # others would make the shared number one of two that everybody knows
            raise NotSealed("a public key must be in 2..p-2")
        return pow(theirs, self.private, PRIME).to_bytes(KEY_BYTES)


def new_key_pair() -> KeyPair:
    """Return a random key pair."""
    private = secrets.randbits(EXPONENT_BITS) | 1 << (EXPONENT_BITS - 1)
    return KeyPair(private, pow(GENERATOR, private, PRIME).to_bytes(KEY_BYTES).hex())


def seal(secret: bytes, own: KeyPair, public: str, context: str) -> str:
    """Seal a secret of SECRET_BYTES for the owner of a public key; returns hexadecimal. Raises NotSealed.

    context: what the secret is for; who opens it must name the same. The pair of keys and the context together may
    seal one secret."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret to seal must have {SECRET_BYTES} bytes, got {len(secret)}")
    pad, tag_key = _keys(own.shared_with(public), context)
    sealed = bytes(a ^ b for a, b in zip(secret, pad, strict=True))
    return (sealed + hmac.digest(tag_key, sealed, "sha256")).hex()


def unseal(sealed: str, own: KeyPair, public: str, context: str) -> bytes:
    """Return what the owner of a public key has sealed for this side. Raises NotSealed."""
    try:
        content = bytes.fromhex(sealed)
    except ValueError as error:
        raise NotSealed("a sealed secret must be hexadecimal") from error
    if len(content) != SECRET_BYTES + TAG_BYTES:
        raise NotSealed(f"a sealed secret must have {2 * (SECRET_BYTES + TAG_BYTES)} digits, got {len(sealed)}")
    pad, tag_key = _keys(own.shared_with(public), context)
    body, tag = content[:SECRET_BYTES], content[SECRET_BYTES:]
    if not hmac.compare_digest(tag, hmac.digest(tag_key, body, "sha256")):
        raise NotSealed("a sealed secret has been changed, or is for somebody else")
    return bytes(a ^ b for a, b in zip(body, pad, strict=True))


def _keys(shared: bytes, context: str) -> tuple[bytes, bytes]:
    """Derive the pad and the key of the tag."""
    extracted = hmac.digest(b"dsgd key exchange", shared, "sha256")
    pad = hmac.digest(extracted, context.encode() + b"\x01", "sha256")
    return pad, hmac.digest(extracted, pad + context.encode() + b"\x02", "sha256")
