"""Settings from the command line and the environment."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from crosstrain.api.__main__ import main
from crosstrain.api.settings import parse


def test_defaults_lie_in_the_state_folder() -> None:
    settings = parse(["--state-dir", "/s"], {})
    assert settings.listen == "127.0.0.1:7440"
    assert settings.database == "sqlite:////s/coordinator.sqlite"
    assert settings.artifacts == "/s/artifacts"
    assert settings.data_dir == ""


def test_options_win_over_the_environment() -> None:
    environment = {
        "CROSSTRAIN_LISTEN": "0.0.0.0:1",
        "CROSSTRAIN_LEASE_SECONDS": "7",
        "CROSSTRAIN_SINGLE_HOST": "true",
        "CROSSTRAIN_DATA_DIR": "",
    }
    settings = parse(["--listen", "0.0.0.0:2"], environment)
    assert (settings.listen, settings.lease_seconds, settings.single_host) == ("0.0.0.0:2", 7, True)
    assert not parse(["--no-single-host"], environment).single_host


@pytest.mark.parametrize("environment", [{"CROSSTRAIN_LEASE_SECONDS": "soon"}, {"CROSSTRAIN_LEASE_SECONDS": "0"}])
def test_wrong_values_end_the_program(environment: dict[str, str]) -> None:
    with pytest.raises(SystemExit):
        parse([], environment)


@pytest.mark.parametrize("options", [
    ["--database-url", "mysql://h/d"],
    ["--listen", "256.1.1.1:1"],
    ["--artifacts-url", "nonsense://x"],
    ["--database-url", "postgresql://nobody@127.0.0.1:1/none"],
    ["--database-url", "postgresql://nobody@127.0.0.1:1/none?no_such_option=1"],
    ["--artifacts-url", "/dev/null/artifacts"],
])
def test_a_coordinator_that_cannot_start_says_why(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--state-dir", str(tmp_path), "--listen", "127.0.0.1:0", *options]) == 3
    said = capsys.readouterr().err
    assert said.startswith("the coordinator cannot start: ")
    assert "Traceback" not in said
    assert said.count("\n") == 1


def test_a_database_that_refuses_is_named_and_its_password_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "postgresql://nobody:secret@127.0.0.1:1/none"
    assert main(["--state-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--database-url", url]) == 3
    said = capsys.readouterr().err
    assert "127.0.0.1" in said and "port 1 failed: Connection refused" in said
    assert "secret" not in said


def test_a_database_that_says_nothing_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/none?connect_timeout=2"
        assert main(["--state-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--database-url", url]) == 3
    assert "timeout" in capsys.readouterr().err
