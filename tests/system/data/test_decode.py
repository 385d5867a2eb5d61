"""What choosing a decoder loads, and says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsgd.data.images.decode import Box, BrokenImage, JpegPartPicture, choose_decoder, open_image
from tests.support.command import in_python
from tests.support.image_files import DECODERS, jpeg, photograph

PIXELS = photograph()


@pytest.mark.skipif("nvimgcodec" not in DECODERS, reason="nvImageCodec is not installed")
def test_the_choice_of_a_decoder_does_not_load_one_that_may_use_a_gpu() -> None:
    """Nothing that is forked of this process could use the GPU after that."""
    program = "import sys; from dsgd.data.images.decode import choose_decoder; print(choose_decoder('auto')); "
    program += "print([name for name in sys.modules if name.startswith('nvidia.')])"
    assert in_python(program).split("\n")[:2] == ["nvimgcodec", "[]"]


@pytest.mark.parametrize("redirection", ["", " 2>&-"], ids=["standard error", "none"])
def test_what_the_decoder_says_about_missing_gpus_is_not_passed_on(redirection: str) -> None:
    program = "from dsgd.data.images.decode import choose_decoder; print(choose_decoder('auto'))"
    command = ["sh", "-c", f'"$0" -c "$1"{redirection}', sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (choose_decoder("auto"), "")


@pytest.mark.skipif("nvimgcodec" not in DECODERS, reason="nvImageCodec is not installed")
def test_a_decoder_that_sees_only_a_part_gets_no_file_that_has_lost_its_end() -> None:
    content = jpeg(PIXELS)
    assert isinstance(open_image(content, "nvimgcodec"), JpegPartPicture)
    with pytest.raises(BrokenImage, match="truncated"):
        open_image(content[:-2000], "nvimgcodec").pixels(1, Box(0, 0, 8, 8))


@pytest.mark.skipif("nvimgcodec" not in DECODERS, reason="nvImageCodec is not installed")
def test_a_package_that_is_too_old_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    older = tmp_path / "nvidia_nvimgcodec_cu12-0.8.1.dist-info"
    older.mkdir()
    (older / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-nvimgcodec-cu12\nVersion: 0.8.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"where nvidia\.nvimgcodec >= 0\.9 is missing"):
        choose_decoder("nvimgcodec")
    assert choose_decoder("auto") == "simplejpeg"
