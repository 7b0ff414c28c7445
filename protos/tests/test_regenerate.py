"""The committed Python package is what the generator writes from the protos."""

from __future__ import annotations

import shutil
from pathlib import Path

import protos_tool as protos


def test_committed_code_is_up_to_date() -> None:
    assert list(protos.differences()) == []


def test_a_changed_proto_is_noticed(protos_copy: Path) -> None:
    file = protos_copy / "crosstrain" / "v1" / "data.proto"
    file.write_text(
        file.read_text().replace("double divisor = 6;", "double divisor = 6;\n  int32 extra = 7;")
    )
    changed = "\n".join(protos.differences(protos=protos_copy))
    assert "generated/data_pb2.py" in changed
    assert "generated/data_pb2.pyi" in changed
    assert "run_pb2" not in changed


def test_left_over_file_is_noticed_and_removed(tmp_path: Path) -> None:
    package = tmp_path / "v1"
    shutil.copytree(protos.PACKAGE, package)
    (package / "gone_pb2.py").write_text("# from a proto that was deleted\n")
    (package / "written_by_hand.py").write_text("")
    assert "gone_pb2.py" in "\n".join(protos.differences(package))
    protos.generate(package)
    assert not (package / "gone_pb2.py").exists()
    assert (package / "written_by_hand.py").exists()
    assert list(protos.differences(package)) == []


def test_generated_code_names_no_module_of_the_coordinator() -> None:
    for path in protos.PACKAGE.iterdir():
        if path.suffix in (".py", ".pyi"):
            text = path.read_text(encoding="utf-8")
            assert "from crosstrain." not in text and "import crosstrain." not in text, path.name


def test_descriptor_files_keep_the_names_of_the_protos() -> None:
    for name in protos.proto_files():
        stem = Path(name).stem
        assert f"# source: {name}" in (protos.PACKAGE / f"{stem}_pb2.py").read_text(encoding="utf-8")
