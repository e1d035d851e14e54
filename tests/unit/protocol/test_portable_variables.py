"""Where the portable bits cannot be had: one sentence with the fix, before anything starts."""

from __future__ import annotations

import importlib.util
import platform
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from samebits.errors import UsageError
from samebits.protocol import portable
from tests.support.portable import needs_portable

pytestmark = needs_portable


def refusal(**present: str) -> UsageError:
    with pytest.raises(UsageError) as error:
        portable.portable_variables(present)
    return error.value


def test_another_processor_or_system_is_refused(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "this is Linux on aarch64" in str(refusal())
    assert 'Use numerics="exact"' in refusal().fix


def test_a_cpu_without_avx2_is_refused():
    library = SimpleNamespace(samebits_portable_lacks=lambda: b"AVX2")
    library.samebits_portable_lacks = _Function(b"AVX2")
    with pytest.raises(UsageError, match="this one has no AVX2"):
        portable.refuse_old_cpu(library)


class _Function:
    def __init__(self, answer: bytes) -> None:
        self.answer, self.restype = answer, None

    def __call__(self) -> bytes:
        return self.answer


def test_a_missing_library_and_a_path_that_cannot_be_preloaded_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(portable, "LIBRARY", tmp_path / "nothing.so")
    assert "needs the compiled part of samebits" in str(refusal())
    spaced = tmp_path / "a folder" / "_portable.so"
    spaced.parent.mkdir()
    spaced.touch()
    monkeypatch.setattr(portable, "LIBRARY", spaced)
    assert "a path with a space or colon cannot be preloaded" in str(refusal())


def test_openblas_is_needed_in_exactly_one_version(monkeypatch):
    versions = {"scipy-openblas32": "0.3.31.1.0"}
    monkeypatch.setattr(metadata, "version", lambda name: versions.get(name, "2.4.6"))
    assert "needs scipy-openblas32 0.3.34.481.3 exactly, but 0.3.31.1.0 is installed" in str(refusal())
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "needs scipy-openblas32, which is not installed" in str(refusal())
    assert refusal().fix == 'Run pip install ".[portable]" in a clone of samebits.'


@pytest.mark.parametrize(("version", "names"), [("2.4.6", "X86_V4"), ("1.26.4", "AVX512F"), ("2.2.6", "AVX512F")])
def test_numpy_is_told_in_the_words_of_its_version(monkeypatch, version, names):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name == "numpy" else real(name))
    assert portable.portable_variables({})["NPY_DISABLE_CPU_FEATURES"].split(",")[0] == names


def test_what_holds_the_kernels_wins_over_what_the_user_has_set_and_ours_is_preloaded_once():
    mine = {"MKL_CBWR": "AVX512", "LD_PRELOAD": f"/lib/allocator.so:{portable.LIBRARY}"}
    held = portable.portable_variables(mine)
    assert held["MKL_CBWR"] == "COMPATIBLE"
    assert held["OPENBLAS_NUM_THREADS"] == "1"
    assert held["LD_PRELOAD"].split(":") == [str(portable.LIBRARY), "/lib/allocator.so"]
    assert Path(held[portable.BLAS]).is_file()
    assert not portable.is_held({**mine, **held}), "this process itself was started without them"
    assert portable.changed_since(held, {**held, "NPY_DISABLE_CPU_FEATURES": ""}) == ["NPY_DISABLE_CPU_FEATURES"]
