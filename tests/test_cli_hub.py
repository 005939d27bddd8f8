"""Models of Hugging Face's, made of a config alone: `hf:NAME`."""

import json
import sys
from pathlib import Path

import pytest
import torch
from cli_runs import misused, refused, tbscope
from transformers import AutoConfig, BertConfig, T5Config, ViTConfig

SMALL = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    bert = BertConfig(**SMALL, vocab_size=9, num_hidden_layers=1, architectures=["BertForMaskedLM"])
    bert.save_pretrained("bert")
    ViTConfig(**SMALL, num_hidden_layers=1, image_size=8, patch_size=4).save_pretrained("vit")
    return tmp_path


def stats(*words):
    result = tbscope("stats", *words, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    return told["graph"], {one["class"]: one["modules"] for one in told["classes"]}


@pytest.mark.parametrize("target", ["hf:bert", "hf:bert/config.json", "hf:./bert"])
def test_a_directory_or_a_config_file_makes_the_class_that_it_names(target):
    name, classes = stats(target)
    assert (name, classes["BertLayer"]) == ("BertForMaskedLM", 1)


def test_a_config_that_names_no_class_makes_the_plain_model_of_its_kind():
    assert stats("hf:vit")[0] == "ViTModel"


def test_pictures_are_made_for_models_that_take_them():
    first = tbscope("show", "hf:vit").stdout.splitlines()[0]
    assert first == "graph(%pixel_values : Float(1, 3, 8, 8)):"
    given = tbscope("show", "hf:vit", "-i", "2x3x8x8").stdout.splitlines()[0]
    assert given == "graph(%pixel_values : Float(2, 3, 8, 8)):"


def test_inputs_and_settings_may_be_given():
    words = ["hf:bert", "-i", "input_ids=2x4:int64", "-a", "num_hidden_layers=3"]
    assert stats(*words)[1]["BertLayer"] == 3
    first = tbscope("show", *words).stdout.splitlines()[0]
    assert first == "graph(%input_ids : Long(2, 4)):"


def test_a_fake_run_makes_no_weights(monkeypatch):
    made = []
    init = torch.nn.Linear.__init__

    def noted(self, *given, **named):
        init(self, *given, **named)
        made.append(self.weight.device.type)

    monkeypatch.setattr(torch.nn.Linear, "__init__", noted)
    assert stats("hf:bert", "--fake") == stats("hf:bert")
    assert (set(made[: len(made) // 2]), set(made[len(made) // 2 :])) == ({"meta"}, {"cpu"})


def test_the_path_of_a_config_makes_no_weights():
    assert stats("bert/config.json") == stats("hf:bert")
    told = tbscope("show", "bert/config.json").stdout
    assert told.startswith("graph(%input_ids : Long(3, 5, device=meta)):")
    Path("other_config.json").write_text("{}")
    assert "'other_config.json' contains no graph" in refused("show", "other_config.json")


def test_a_model_with_a_decoder_has_inputs_for_both():
    sizes = {"d_model": 8, "d_ff": 8, "num_layers": 1, "num_heads": 2, "d_kv": 4}
    T5Config(**sizes, vocab_size=9).save_pretrained("t5")
    first = tbscope("show", "hf:t5").stdout
    assert {"%decoder_input_ids", "%input_ids"} <= set(
        first.split("\n")[0].replace("(", " ").split()
    )


def test_what_is_not_in_the_cache_is_not_downloaded():
    assert refused("show", "hf:nobody/nothing") == (
        "Error: there is no config hf:nobody/nothing\n"
        "  why: it is no path, and no model in the local cache\n"
        "  fix: add --download, or give the path of its config.json\n"
    )


@pytest.mark.parametrize(("flags", "local"), [((), True), (("--download",), False)])
def test_only_with_a_flag_may_a_config_be_downloaded_and_never_code(monkeypatch, flags, local):
    asked, load = [], AutoConfig.from_pretrained

    def from_pretrained(name, **options):
        asked.append(options)
        return load(name, **{**options, "local_files_only": True})

    monkeypatch.setattr(AutoConfig, "from_pretrained", from_pretrained)
    assert tbscope("show", "hf:bert", *flags, "-a", "hidden_size=4").exit_code == 0
    assert asked == [{"local_files_only": local, "trust_remote_code": False, "hidden_size": 4}]


def test_a_config_that_is_none_is_told(folder):
    (folder / "odd").mkdir()
    (folder / "odd" / "config.json").write_text('{"model_type": "no such kind"}')
    told = refused("show", "hf:odd").splitlines()
    assert told[0] == "Error: no config can be read from hf:odd"
    assert told[-1] == "  fix: give a config.json that transformers wrote, or the directory of one"
    assert "no model can be made of hf:bert" in refused("show", "hf:bert", "-a", "hidden_size=7")


def test_without_transformers_there_is_one_message(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    first, _, last = refused("show", "hf:bert").splitlines()
    assert first == "Error: hf:bert needs the package transformers"
    assert last == "  fix: pip install transformers"


def test_a_download_is_for_these_models_alone():
    Path("net.py").write_text("from torch.nn import ReLU\n")
    assert misused("show", "net.py:ReLU", "--download") == "Error: --download is for hf:NAME."
    assert misused("show", "hf:").startswith("Error: Invalid value for 'TARGET': 'hf:' has not the")
