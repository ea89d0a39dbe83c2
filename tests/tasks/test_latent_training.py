"""What gates learn at each update, and which languages a batch is of."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.config import LatentConfig, LatentTrainingConfig, ModelConfig, StackConfig, TrainingConfig, parse_recipe
from depthwise.errors import ConfigError, InputError
from depthwise.losses.latent import fairseq_sharing, sharing_entropy
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.tasks import MultilingualTranslation, load_task, open_task
from depthwise.tasks.latent_training import LatentTraining
from depthwise.training.latent import LatentSteps

from .conftest import multilingual_options

CPU = torch.device("cpu")
STACK = StackConfig(num_layers=3, num_heads=2, ffn_width=8, norm="pre")
GATES = LatentConfig(per_language=True, source_languages=("en",), target_languages=("de", "fr"))


def learning(latent: LatentConfig = GATES, seed: int = 1, **options: Any) -> tuple[LatentTraining, Any]:
    model = ModelConfig(vocab_size=10, width=8, encoder=STACK, decoder=STACK, latent=latent)
    made = DepthwiseForSeq2SeqLM(DepthwiseConfig.from_options(model)).train()
    with torch.no_grad():
        for layers in made.latent_layers().values():
            layers.logits.copy_(torch.linspace(-2, 3, layers.logits.numel()).view_as(layers.logits))
    training = LatentTraining(TrainingConfig(latent=LatentTrainingConfig(**options)), model, seed)
    training.attach(made)
    return training, made


def passed(training: LatentTraining, model: Any, update: int, languages: tuple[int, ...] = (0, 0)) -> torch.Tensor:
    """The penalty after a pass, with its gradient in the logits."""
    training.advance(update, CPU)
    told = torch.tensor(languages)
    model(torch.full((len(told), 3), 5), decoder_input_ids=torch.full((len(told), 2), 5), target_languages=told)
    model.zero_grad()
    penalty = training.penalty({"target_languages": told})
    penalty.backward()
    return penalty.detach()


def test_weights_grow_one_after_the_other() -> None:
    training, _ = learning(beta=2.0, target_depth=(2,), depth_weight=0.5, soft_updates=10, anneal_updates=20)
    found = [training.weights(update)[:2] for update in (0, 10, 20, 30, 40, 50, 90)]
    assert found == [(0, 0), (0, 0), (1, 0), (2, 0), (2, 0.25), (2, 0.5), (2, 0.5)]
    assert [training.is_hard(update) for update in (0, 9, 10)] == [False, False, True]
    at_once, _ = learning(beta=2.0, soft_updates=10, anneal_updates=0)
    assert [at_once.weights(update)[0] for update in (9, 10)] == [0, 2]
    soft, _ = learning(soft_updates=None)
    assert not soft.is_hard(10**6)


@pytest.mark.parametrize(("soft_updates", "hard"), [(30, [False, False, True]), (None, [False, False, False])])
def test_weights_may_grow_before_samples_are_hard(soft_updates: int | None, hard: list[bool]) -> None:
    options = {"beta": 2.0, "target_depth": (2,), "depth_weight": 0.5, "anneal_updates": 20}
    training, _ = learning(**options, soft_updates=soft_updates, anneal_from=10)
    found = [training.weights(update)[:2] for update in (0, 10, 20, 30, 40, 50, 90)]
    assert found == [(0, 0), (0, 0), (1, 0), (2, 0), (2, 0.25), (2, 0.5), (2, 0.5)]
    assert [training.is_hard(update) for update in (0, 29, 30)] == hard


def test_ramps_of_the_released_code() -> None:
    """β begins below 0, and λ is multiplied by itself until it is grown."""
    options = {"beta": 2.0, "target_depth": (2,), "depth_weight": 0.5, "soft_updates": 10, "anneal_updates": 20}
    training, _ = learning(**options, ramps="fairseq")
    found = [training.weights(update)[:2] for update in (0, 10, 20, 30, 40, 50)]
    assert found == [(-1, 0), (0, 0), (1, 0), (2, 0), (2, 0.125), (2, 0.5)]


def test_the_temperature_falls() -> None:
    training, model = learning(final_temperature=1.0, temperature_updates=100)
    assert [training.temperature(update) for update in (0, 50, 100, 500)] == [5, 3, 1, 1]
    training.advance(50, CPU)
    assert float(model.latent_layers()["decoder"].temperature) == 3


def test_noise_follows_from_seed_update_and_pass() -> None:
    def noises(seed: int, *updates: int) -> list[torch.Tensor]:
        training, model = learning(seed=seed)
        found = []
        for update in updates:
            training.advance(update, CPU)
            found.append(model.latent_layers()["decoder"].noise.clone())
        return found

    first = noises(1, 3, 3, 4)
    assert all(map(torch.equal, first, noises(1, 3, 3, 4)))
    assert torch.equal(noises(1, 4)[0], first[2])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], noises(2, 3)[0])


def test_the_place_of_what_changes_does_not() -> None:
    training, model = learning()
    layers = model.latent_layers()["decoder"]
    training.advance(0, CPU)
    places = [layers.noise.data_ptr(), layers.temperature.data_ptr(), layers.hardness.data_ptr()]
    training.advance(1000, CPU)
    assert [layers.noise.data_ptr(), layers.temperature.data_ptr(), layers.hardness.data_ptr()] == places


def test_the_divergence_is_of_the_languages_of_the_batch() -> None:
    training, model = learning(beta=1.0, soft_updates=0, anneal_updates=0)
    logits = model.latent_layers()["decoder"].logits
    both = [float(passed(training, model, 1, (language,) * 2)) for language in (0, 1)]
    assert not logits.grad[0].any()
    assert bool(logits.grad[1].any())
    assert float(passed(training, model, 1, (0, 1, 1, 1))) == pytest.approx((both[0] + both[1]) / 2)


def test_the_wanted_depth_is_the_mean_over_languages() -> None:
    training, model = learning(beta=0.0, soft_updates=0, anneal_updates=0, target_depth=(2,), depth_weight=0.5)
    layers = model.latent_layers()["decoder"]
    used = float(layers.probabilities.detach().mean(0).sum())
    assert float(passed(training, model, 1)) == pytest.approx(0.5 * abs(used - 2))
    assert bool((layers.logits.grad != 0).all())
    by_samples, model = learning(
        beta=0.0, soft_updates=0, anneal_updates=0, target_depth=(3,), depth_loss="square", utilisation="samples"
    )
    layers = model.latent_layers()["decoder"]
    found = float(passed(by_samples, model, 1))
    assert found == pytest.approx(0.1 * (float(layers.drawn.samples.detach().mean(0).sum()) - 3) ** 2)


@pytest.mark.parametrize(("form", "sharing"), [("exact", sharing_entropy), ("fairseq", fairseq_sharing)])
def test_sharing_of_hard_samples(form: str, sharing: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Layers that are closed for all languages have a gradient that is a number."""
    training, model = learning(
        beta=0.0, soft_updates=0, anneal_updates=0, sharing_weight=0.5, sharing=form, utilisation="samples"
    )
    layers = model.latent_layers()["decoder"]
    with torch.no_grad():
        layers.logits.copy_(torch.tensor([[-90.0, 90.0, 90.0], [-90.0, -90.0, 90.0]]))
    found = float(passed(training, model, 1))
    assert layers.drawn.samples.tolist() == [[0, 1, 1], [0, 0, 1]]
    assert found == pytest.approx(0.5 * float(sharing(torch.tensor([0.0, 0.5, 1.0]))))
    assert bool(layers.logits.grad.isfinite().all())


@pytest.mark.parametrize("sides", [("encoder", "decoder"), ("decoder", "encoder")])
def test_a_depth_is_wanted_of_the_side_that_it_is_named_for(sides: tuple[str, ...]) -> None:
    wanted = tuple(2 if side == "decoder" else None for side in sides)
    training, model = learning(
        LatentConfig(sides=sides), beta=0.0, soft_updates=0, anneal_updates=0, target_depth=wanted, depth_weight=0.5
    )
    layers = model.latent_layers()
    used = float(layers["decoder"].probabilities.detach().sum())
    assert float(passed(training, model, 1)) == pytest.approx(0.5 * abs(used - 2))
    assert bool(layers["decoder"].logits.grad.any())
    assert not layers["encoder"].logits.grad.any()


def test_an_aggregated_prior_waits_until_the_weight_is_grown() -> None:
    options = {"beta": 1.0, "soft_updates": 0, "anneal_updates": 10}
    aggregated, model = learning(prior="aggregated", **options)
    plain, twin = learning(**options)
    assert float(passed(aggregated, model, 9)) == pytest.approx(float(passed(plain, twin, 9)))
    late = float(passed(aggregated, model, 10))
    assert late != pytest.approx(float(passed(plain, twin, 10)), rel=0.1)
    probabilities = model.latent_layers()["decoder"].probabilities.detach()
    prior = torch.distributions.Bernoulli(probabilities.mean(0))
    wanted = torch.distributions.kl_divergence(torch.distributions.Bernoulli(probabilities[0]), prior).sum()
    assert late == pytest.approx(float(wanted), rel=1e-4)


@pytest.mark.parametrize("prior", ["beta", "aggregated", "fairseq_aggregated"])
def test_divergences_of_samples(prior: str) -> None:
    training, model = learning(kl="fairseq", prior=prior, beta=2.0, soft_updates=None, anneal_updates=0)
    found, layers = float(passed(training, model, 1)), model.latent_layers()["decoder"]
    samples, probabilities = layers.drawn.samples.detach(), layers.drawn.probabilities.detach()
    priors = {
        "beta": torch.full_like(samples[0], 0.5),
        "aggregated": probabilities.mean(0),
        "fairseq_aggregated": samples.sum(0) / samples.sum(),
    }
    wanted = (samples[0] * (samples[0].log() - priors[prior].log())).mean()
    assert found == pytest.approx(2 * float(wanted), rel=1e-4)
    assert bool(layers.logits.grad[0].any())


SHORT: dict[str, Any] = {"soft_updates": 10, "anneal_updates": 20}


@pytest.mark.parametrize(
    ("num_updates", "options", "said"),
    [
        (11, {}, ["beta  after soft_updates = 10"]),
        (12, {}, []),
        (31, {"target_depth": (2,)}, ["target_depth  after soft_updates + anneal_updates = 30"]),
        (32, {"target_depth": (2,), "sharing_weight": 0.1}, []),
        (31, {"sharing_weight": 0.1}, ["sharing_weight  after soft_updates + anneal_updates = 30"]),
        (30, {"prior": "aggregated"}, ["prior  after soft_updates + anneal_updates = 30"]),
        (31, {"prior": "aggregated"}, []),
        (21, {"anneal_from": 20}, ["beta  after anneal_from = 20"]),
        (22, {"anneal_from": 0, "target_depth": (2,)}, []),
        (21, {"anneal_from": 0, "target_depth": (2,)}, ["target_depth  after anneal_from + anneal_updates = 20"]),
        (11, {"beta": 0.0}, []),
        (11, {"ramps": "fairseq"}, []),
        (31, {"ramps": "fairseq", "target_depth": (2,)}, ["target_depth  after soft_updates + anneal_updates = 30"]),
        (1, {"soft_updates": None, "anneal_updates": 0, "target_depth": (2,), "prior": "aggregated"}, []),
    ],
)
def test_what_has_no_effect_in_so_few_updates(num_updates: int, options: dict[str, Any], said: list[str]) -> None:
    training, _ = learning(**{**SHORT, **options})
    because = f" has no effect with training.max_updates = {num_updates}, since it counts "
    found = list(training.without_effect(num_updates))
    assert found == [f"training.latent.{text.replace('  ', because)}; lower that" for text in said]
    assert not said or not list(training.without_effect(num_updates + 1))


def test_logits_that_are_never_updated() -> None:
    training, _ = learning(**SHORT, inner_updates=40)
    assert list(training.without_effect(39)) == [
        "training.latent.inner_updates = 40 is more than training.max_updates = 39, so that logits are never updated; "
        "lower it"
    ]
    assert not list(training.without_effect(40))


def test_it_is_said_once_what_has_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the beginning of training, not where an interrupted one goes on."""
    task = multilingual(tmp_path, ["en-xx", "en-yy"], "decoder", sides=["decoder"])
    steps = LatentSteps(task, task.new_model(), tmp_path)
    for num_updates in (0, 1):
        steps.begin(num_updates)
    assert caplog.messages == [
        "training.latent.beta has no effect with training.max_updates = 1, since it counts after soft_updates = 500; "
        "lower that"
    ]


def test_validation_draws_from_the_seed_of_the_recipe(tmp_path: Path) -> None:
    """Where the model has sampled gates, and the recipe says no others for its evaluation."""
    task = multilingual(tmp_path, ["en-xx", "en-yy"], "decoder", gates="sampled")
    model = task.new_model().eval()

    def drawn(seed: int) -> torch.Tensor:
        task.recipe = replace(task.recipe, seed=seed)
        LatentSteps(task, model, tmp_path)
        weight = model.latent_layers()["decoder"](torch.tensor([0, 1]), 2).weight
        assert weight is not None
        return weight

    assert torch.equal(drawn(77), drawn(77))
    assert not torch.equal(drawn(1), drawn(77))


def test_updates_of_the_logits_come_behind_those_of_the_weights() -> None:
    training, _ = learning(inner_updates=3)
    assert [training.holds_logits(update) for update in range(6)] == [True, True, False] * 2
    assert not any(learning()[0].holds_logits(update) for update in range(5))


def test_what_is_written_down() -> None:
    training, model = learning(target_depth=(2,))
    passed(training, model, 0)
    layers = model.latent_layers()["decoder"]
    assert training.depths() == {
        "expected_depth/decoder": pytest.approx(float(layers.probabilities.detach().sum(-1).mean())),
        "effective_depth/decoder": 1.5,
    }
    of_french = training.record()["decoder"]["fr"]
    assert of_french["probabilities"] == pytest.approx(layers.probabilities[1].tolist(), abs=1e-4)
    assert len(of_french["samples"]) == 3


# Languages of a task


def multilingual(tmp_path: Path, pairs: list[str], token: str, **latent: Any) -> MultilingualTranslation:
    options = multilingual_options(tmp_path, language_token=token)
    options["data"]["pairs"] = pairs
    stack = {**options["model"]["decoder"], "norm": "pre", "num_layers": 2}
    options["model"] |= {"encoder": stack, "decoder": stack, "latent": {"per_language": True, **latent}}
    task = open_task(parse_recipe(options), tmp_path / "run")
    assert isinstance(task, MultilingualTranslation)
    return task


@pytest.mark.parametrize("token", ["source", "decoder"])
def test_rows_say_the_language_that_they_are_translated_into(tmp_path: Path, token: str) -> None:
    task = multilingual(tmp_path, ["en-yy", "en-xx"], token, sides=["encoder", "decoder"])
    latent = task.options.latent
    assert (latent.source_languages, latent.target_languages) == (("en",), ("xx", "yy"))
    assert task.options.vocab_size == len(task.tokenizers.target)
    stores = task.examples("train")
    names = [stores.pair(number) for number in range(len(stores))]
    learned = task.collate([stores[names.index("en-yy")]] * 2)
    assert learned["target_languages"].tolist() == [1, 1]
    assert "source_languages" not in learned
    asked = task.collate(task.rows([("yy", "a b"), ("xx", "a")]))
    assert asked["target_languages"].tolist() == [1, 0]
    model = task.new_model().eval()
    model.use_gates("hard")
    with torch.no_grad():
        model.latent_layers()["decoder"].logits.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    model.latent_layers()["encoder"].logits.data.fill_(1.0)
    found = task.predict(model, asked)
    assert [set(prediction.depths) for prediction in found] == [{1}, {2}]
    scored = task.scored_rows([("yy", "a b"), ("xx", "a b")], ["B A", "B A"])
    assert len(task.log_probabilities(model, scored)) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target_languages": ["aa"]}, "target_languages  aa lacks xx, yy of data.pairs; name all languages"),
        ({"target_languages": ["xx"]}, "target_languages  xx lacks yy of data.pairs; name all languages"),
        ({"target_languages": ["xx", "yy", "xx"]}, "xx, yy, xx names one twice; name each once"),
        ({"source_languages": ["de"], "sides": ["encoder"]}, "source_languages  de lacks en of data.pairs; name all"),
    ],
)
def test_gates_are_for_the_languages_of_the_data(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        multilingual(tmp_path, ["en-xx", "en-yy"], "decoder", **given)


def test_gates_may_be_for_more_languages_in_another_order(tmp_path: Path) -> None:
    """Where languages of one side alone are named, those of the other follow from the data."""
    task = multilingual(tmp_path, ["en-xx", "en-yy"], "decoder", target_languages=["yy", "zz", "xx"])
    latent = task.options.latent
    assert (latent.source_languages, latent.target_languages) == (("en",), ("yy", "zz", "xx"))
    assert task.collate(task.rows([("yy", "a b"), ("xx", "a")]))["target_languages"].tolist() == [0, 2]


def test_encoders_ask_for_the_language_that_is_translated(tmp_path: Path) -> None:
    task = multilingual(tmp_path, ["xx-en", "yy-en"], "none", sides=["encoder"])
    assert (task.num_inputs, task.input_names) == (2, ("pair of languages", "text"))
    batch = task.collate(task.rows([("yy-en", "a a b b"), ("xx-en", "B A")]))
    assert batch["source_languages"].tolist() == [1, 0]
    assert len(task.predict(task.new_model().eval(), batch)) == 2
    example = next(iter(task.corpus("test").examples(task.examples("test").report)))
    assert task.inputs_of(example)[0] in ("xx-en", "yy-en")
    for told, message in (("en", "the language of the text is not named; name both"), ("zz-en", "zz is none of them")):
        with pytest.raises(InputError, match=f"the encoder has layers for xx, yy; {message}"):
            task.collate(task.rows([(told, "a")]))


def test_a_finished_run_keeps_its_languages(tmp_path: Path) -> None:
    task = multilingual(tmp_path, ["en-xx", "en-yy"], "decoder")
    folder = tmp_path / "saved"
    task.new_model().save_pretrained(folder)
    task.save(folder)
    recipe = task.resolved()
    fewer = load_task(folder, replace(recipe, data=replace(recipe.data, pairs=("en-yy",))))
    assert fewer.collate(fewer.rows([("yy", "a")]))["target_languages"].tolist() == [1]


def test_other_tasks_know_no_languages(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\tb\n")
    stack = {"num_layers": 2, "num_heads": 2, "ffn_width": 8, "norm": "pre"}
    recipe = {
        "task": "translation",
        "data": {"train": str(tmp_path / "t.tsv")},
        "tokenizer": {"kind": "word", "vocab_size": 20},
        "model": {"width": 8, "encoder": stack, "decoder": stack, "latent": {"per_language": True}},
        "training": {"max_updates": 1},
    }
    with pytest.raises(ConfigError, match="translation knows no languages; use the task multilingual_translation"):
        open_task(parse_recipe(recipe), tmp_path / "run")
    recipe["model"]["latent"] = {}  # type: ignore[index]
    recipe["training"] = {"max_updates": 1, "latent": {"target_depth": 3}}
    with pytest.raises(ConfigError, match="3 is more than the 2 layers of the decoder"):
        open_task(parse_recipe(recipe), tmp_path / "run")
