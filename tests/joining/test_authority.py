"""The authority: what it signs, what it refuses, and that its files are complete or reported."""

import stat
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from headrace.errors import InvalidFieldError
from headrace.spiffe import WORKERS_HOST, worker_of, worker_uri
from headrace_services.identity import authority, join_tokens
from headrace_services.identity.command import ca
from headrace_worker import credential

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    authority.make(tmp_path / "ca", ["head.internal", "10.0.0.5", "::1"], now=NOW)
    return tmp_path / "ca"


def test_keys_are_the_owners_alone(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"ca.pem", "ca.key", "server.pem", "server.key"}
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in ("ca.key", "server.key")} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_server_has_the_hosts(folder: Path) -> None:
    server = x509.load_pem_x509_certificate(authority.load(folder).server_pem)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["head.internal"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.0.0.5", "::1"]
    server.verify_directly_issued_by(authority.load(folder).certificate)


def test_a_worker_is_a_client_of_its_name_for_its_time(folder: Path) -> None:
    key = credential.new_key()
    found = authority.public_key_in(credential.signing_request(key, "somebody else"))
    pem = authority.load(folder).sign_worker("gpu-7", found, now=NOW, lives=timedelta(days=30))
    made = x509.load_pem_x509_certificate(pem)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [worker_uri("gpu-7")]
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    # As a server it has no host's name, and none next to which a name in the subject would count.
    assert names.get_values_for_type(x509.DNSName) == [WORKERS_HOST]
    assert WORKERS_HOST.endswith(".invalid")
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert made.not_valid_after_utc == (NOW + timedelta(days=30)).replace(microsecond=0)
    assert authority.issued(made) == NOW
    made.verify_directly_issued_by(authority.load(folder).certificate)


@pytest.mark.parametrize(
    ("lives", "apart", "taken"),
    [
        (timedelta(days=30), timedelta(hours=-1), True),
        (timedelta(days=30), timedelta(hours=1), True),
        (timedelta(days=30), timedelta(hours=-3), False),
        (timedelta(hours=1), timedelta(minutes=-5), True),
        (timedelta(hours=1), timedelta(minutes=-7), False),
        (timedelta(hours=1), timedelta(minutes=59), True),
        (timedelta(hours=1), timedelta(minutes=61), False),
    ],
)
def test_what_was_just_signed_is_taken_by_a_clock_that_is_an_hour_behind(
    folder: Path, lives: timedelta, apart: timedelta, *, taken: bool
) -> None:
    """As TLS checks it on a machine with that clock: a replica's, or that of a worker which checks the scheduler's
    certificate."""
    held = authority.load(folder)
    pem = held.sign_worker("w", credential.new_key().public_key(), now=NOW, lives=lives)
    at = verification.PolicyBuilder().store(verification.Store([held.certificate])).time(NOW + apart)
    with nullcontext() if taken else pytest.raises(verification.VerificationError):
        at.build_client_verifier().verify(x509.load_pem_x509_certificate(pem), [])


def test_two_certificates_of_one_moment_differ(folder: Path) -> None:
    held, key = authority.load(folder), credential.new_key().public_key()
    signed = [x509.load_pem_x509_certificate(held.sign_worker("w", key, now=NOW)) for _ in range(2)]
    assert signed[0].serial_number != signed[1].serial_number
    assert all(made.serial_number.bit_length() <= 159 for made in signed)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "-----BEGIN CERTIFICATE REQUEST-----\nMA==\n-----END CERTIFICATE REQUEST-----"]
)
def test_no_signing_request_is_refused(text: str) -> None:
    with pytest.raises(InvalidFieldError, match="signing_request"):
        authority.public_key_in(text)


def test_a_key_of_another_kind_is_refused() -> None:
    from cryptography.hazmat.primitives import hashes

    key = rsa.generate_private_key(65537, 2048)
    asked = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    with pytest.raises(InvalidFieldError, match="P-256"):
        authority.public_key_in(asked.public_bytes(serialization.Encoding.PEM).decode())


def test_an_authority_is_never_written_over(folder: Path) -> None:
    before = (folder / "ca.key").read_bytes()
    with pytest.raises(InvalidFieldError, match="already"):
        authority.make(folder, ["h"], now=NOW)
    assert (folder / "ca.key").read_bytes() == before


@pytest.mark.parametrize("hosts", [[], ["a b"], ["head:7440"], ["tls://head"], [""]])
def test_what_is_no_host_is_refused_before_anything_is_written(tmp_path: Path, hosts: list[str]) -> None:
    with pytest.raises(InvalidFieldError, match="HOST"):
        authority.make(tmp_path / "ca", hosts, now=NOW)
    assert not (tmp_path / "ca").exists()


def test_another_server_has_a_key_and_hosts_of_its_own(folder: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    into = tmp_path / "planner"
    authority.make_server(folder, ["plans.internal"], now=NOW, into=into)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {path.name for path in into.iterdir()} == {"server.pem", "server.key"}
    assert stat.S_IMODE((into / "server.key").stat().st_mode) == 0o600
    assert (into / "server.key").read_bytes() != before["server.key"]
    made = x509.load_pem_x509_certificate((into / "server.pem").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["plans.internal"]
    made.verify_directly_issued_by(authority.load(folder).certificate)


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "server.pem", "server.key"])
@pytest.mark.parametrize("what", ["missing", "garbage", "another"])
def test_a_folder_that_is_not_whole_is_refused(folder: Path, tmp_path: Path, name: str, what: str) -> None:
    match what:
        case "missing":
            (folder / name).unlink()
        case "garbage":
            (folder / name).write_text("x")
        case _:
            authority.make(tmp_path / "other", ["h"], now=NOW)
            (folder / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(InvalidFieldError) as refused:
        authority.load(folder)
    assert refused.value.violations[0].remedy


def test_the_command(tmp_path: Path) -> None:
    runner = CliRunner()
    made = runner.invoke(ca, ["init", str(tmp_path / "ca"), "head"])
    assert made.exit_code == 0, made.output
    again = runner.invoke(ca, ["init", str(tmp_path / "ca"), "head"])
    assert (again.exit_code, "already" in again.output) == (2, True)
    before = (tmp_path / "ca" / "server.pem").read_bytes()
    assert runner.invoke(ca, ["server", str(tmp_path / "ca"), "other"]).exit_code == 0
    assert (tmp_path / "ca" / "server.pem").read_bytes() != before
    assert "days left" in runner.invoke(ca, ["show", str(tmp_path / "ca")]).output


def test_tokens_are_not_shown_by_accident() -> None:
    token = join_tokens.new_token()
    assert join_tokens.read(token.text) == token
    assert token.text not in repr(token)
    assert len(token.text) == 63
    assert not join_tokens.new_token().is_of(token.digest)
    assert token.is_of(token.digest)


@pytest.mark.parametrize(
    "text", ["", "hr_", "hr_0123456789abcdef_", "x" * 63, "hr_0123456789ABCDEF_" + "a" * 43]
)
def test_what_is_no_token(text: str) -> None:
    assert join_tokens.read(text) is None


@pytest.mark.parametrize(
    "uri", ["", "spiffe://other/worker/a", "spiffe://headrace/worker/", "spiffe://headrace/worker/a/b"]
)
def test_what_names_no_worker(uri: str) -> None:
    assert worker_of(uri) is None
    assert worker_of(worker_uri("a.b-c_1")) == "a.b-c_1"


def test_a_credential_is_the_old_one_or_the_new_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever line the daemon dies, the file is never half written."""
    home = tmp_path / "home"
    home.mkdir()
    held = authority.load(folder)

    def made(name: str) -> credential.Credential:
        key = credential.joining_key(home)
        return credential._credential(
            credential._pem(key),
            held.sign_worker(name, key.public_key(), now=NOW).decode(),
            held.trusted_pem.decode(),
            addresses=(),
            port=7442,
        )

    assert credential.load(home) is None
    key = credential.joining_key(home)
    again = credential.joining_key(home)
    assert key.private_numbers() == again.private_numbers(), "a join that is repeated has the same key"
    old = made("old")
    credential.store(home, old)
    assert credential.load(home) == old
    assert stat.S_IMODE((home / "credential.json").stat().st_mode) == 0o600
    assert not (home / "joining.key").exists()
    new = made("new")
    for call in ("fsync", "replace"):

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", die) if call == "replace" else patch.setattr("os.fsync", die)
            with pytest.raises(KeyboardInterrupt):
                credential.store(home, new)
        assert credential.load(home) == old
    credential.store(home, new)
    assert credential.load(home) == new


def test_where_workers_connect(folder: Path) -> None:
    key = credential.new_key()
    held = authority.load(folder)
    pem = held.sign_worker("w", key.public_key(), now=NOW).decode()
    kept = credential._credential(credential._pem(key), pem, "", addresses=(), port=7442)
    assert kept.listeners(("a:7440", "b:7440", "[::1]:1", "a:7441")) == ("a:7442", "b:7442", "[::1]:7442")
    named = credential._credential(credential._pem(key), pem, "", addresses=("x:1", "y:2"), port=7442)
    assert named.listeners(("a:7440",)) == ("x:1", "y:2")
    assert isinstance(key, ec.EllipticCurvePrivateKey)
