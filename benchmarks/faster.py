"""Depth known in advance, on the data of Liu et al. (2021): what is to be trained, and the paper's tables beside ours.

    python benchmarks/faster.py plan --sets trec,mr --methods full,mi,random --seeds 1,2,3
    python benchmarks/faster.py run --sets trec,mr --methods full,mi,random --seeds 1,2,3 --runs runs
    python benchmarks/faster.py plan --sweep penalty --sets imdb
    python benchmarks/faster.py plan --sweep weights --sets trec
    python benchmarks/faster.py deepen runs/minilm 12 --into runs/minilm-12
    python benchmarks/faster.py plan --sweep layers --sets imdb --from runs/minilm-12
    python benchmarks/faster.py plan --sets imdb --methods full,mi,mi-half --from runs/minilm-12
    python benchmarks/faster.py speed runs/faster-trec-mi-1 runs/faster-trec-full-1 --rows 1,8,32
    python benchmarks/faster.py depths --sets trec,mr
    python benchmarks/faster.py compare runs/faster-trec-mi-1 runs/faster-trec-reconstruction-1
    python benchmarks/faster.py amortised runs/faster-trec-reconstruction-1 runs/faster-trec-reconstruction_table-1 \\
        runs/faster-trec-reconstruction_predictor-1
    python benchmarks/faster.py folds data/mr/train.tsv data/mr/valid.tsv data/mr/test.tsv --into data/mr
    python benchmarks/faster.py tables

``plan`` prints the commands, ``run`` runs those whose run is not finished, and collects what comes of them in
docs/results/faster.json; ``tables`` prints the tables of ``tables.yaml`` that begin with faster. A fold of
cross-validation counts as a seed. Warm methods begin with a model that has guessed masked words of the same texts after
every block; taught ones with the model of all blocks of the same data and seed, and learn from its scores too.
``deepen`` writes a model with more blocks than a pretrained one has. ``speed`` times finished runs on their test data
by both executors: *masked* runs all tokens of a batch to the depth of its deepest one (n_max), *compact* each
token as deep as its word says. ``depths`` says how deep words of test data run by tables, before anything is trained,
and ``compare`` sets the depths that two runs give the same words beside each other. ``amortised`` does so for depths by
reconstruction and what stands in for them, a table of words and a distilled predictor: how often and how far they are
off, how long finding them takes, and what the classifier that learned with them scores.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import results
import yaml
from jobs import Campaign, Evaluation, Job, lines_of

from depthwise.config import read_recipe

RECORD = results.RECORDS / "faster.json"
DOMAINS = (
    *("apparel", "baby", "books", "camera_photo", "dvd", "electronics", "health_personal_care", "imdb"),
    *("kitchen_housewares", "magazines", "MR", "music", "software", "sports_outdoors", "toys_games", "video"),
)
FOLDS = 5
FOLDED = ("mr", "subj")
SPLITS = ("train", "valid", "test")
LONG = ("imdb", "agnews", "amazon16", "dbpedia", "yelp_p", "yelp_f")
"""Sets whose texts are masked in no more than ``COPIES`` copies each."""
COPIES = 8
MASKED_EPOCHS = {"trec": 20, "mr": 15, "subj": 15, "agnews": 10, "sst2": 3, "imdb": 3, "amazon16": 3}
"""For masked language models, 1 elsewhere."""
RUNS, MASKED_RUN, BEGIN, TEACHER = "runs", "model.word_depths.run", "model.from", "training.teacher"
"""Where runs are unless told otherwise; what says where a masked language model is, where a model begins, and whom it
learns from."""
NO_EXITS, NO_DEPTHS = "model.exits=null", "model.word_depths=null"
"""For a model that begins with one that has exits, and for all blocks."""
FULL = "full"
"""The method that teaches others."""
PENALTIES = (0, 0.05, 0.1, 0.15, 0.2)
WEIGHTS = {"decaying": "training.exits.weights=inverse", "drawn": "training.exits.objective=mixed"}
"""How much the losses after the blocks of a masked language model count, where not all the same."""
BLOCKS, DEEPER_BLOCKS = 6, 12
"""Up to which numbers of them are swept over, from the pretrained model and from one that ``deepen`` began."""
TABLES = "faster"
"""Begins the names of tables."""


VALID = Evaluation("valid", ("--split", "valid"))
USUAL = (VALID, Evaluation("test"))


BUDGET, ELSEWHERE = "model.word_depths.mean_depth", "elsewhere"
BUDGETS = {"trec": 1.6, "mr": 2.55, "sst2": 2.6, "agnews": 2.5, ELSEWHERE: 2.75}
"""Mean depths of words by which tokens run no more than half of six blocks: words never seen and tokens around a text
run deeper, and the shorter texts are, the more these count."""
LEAST_BUDGETS = {"trec": 2.5, "mr": 2.85, "sst2": 2.75, "agnews": 2.85, "amazon16": 2.85, ELSEWHERE: 2.95}
"""The same where informative words run deep, and none runs less than two blocks."""


@dataclass(frozen=True)
class Method:
    """Changes of the recipe by mutual information, and at which depth what comes of them is evaluated."""

    changes: tuple[str, ...] = ()
    evaluations: tuple[Evaluation, ...] = USUAL
    masks: bool = False
    """Whether its depths come from a masked language model of the same texts."""
    warm: bool = False
    """Whether it begins with that model, in the place of the pretrained one."""
    taught: bool = False
    """Whether it begins with the model of all blocks of the same seed, and learns from it."""
    budgets: Mapping[str, float] = field(default_factory=lambda: BUDGETS)
    """Of data sets, where its changes name a budget."""
    longer: int = 1
    """How many times as many epochs as the recipe has."""


def _estimator(name: str, *more: str) -> tuple[str, ...]:
    return (f"model.word_depths.estimator={name}", *more)


COMMON = ("model.word_depths.bins=quantile", "model.word_depths.min_documents=3")
"""Depths of words that several documents have, as many words of each depth."""
HALF = ("model.word_depths.bins=tokens", BUDGET, "model.word_depths.min_documents=3")
"""Depths by which tokens run no more than half of six blocks in the mean, where mutual information finds them."""
INFORMATIVE = (*HALF, "model.word_depths.deep=informative")
LEAST = (*INFORMATIVE, "model.word_depths.least=2")
THREE = _estimator("fixed", "model.word_depths.depth=3")
PATIENCE = 3
"""Times as many epochs, for those who learn from a teacher until it shows (Beyer et al. 2022)."""
TAUGHT = (f"{TEACHER}.weight=0.7", f"{TEACHER}.temperature=2")
HALTING = (
    NO_DEPTHS,
    "model.exits.heads=tied",
    "model.policy.kind=token",
    "model.policy.never_correct=last",
)
POLICY = (
    *USUAL,
    Evaluation("test-policy", ("--depth", "policy")),
    Evaluation("valid-policy", ("--split", "valid", "--depth", "policy")),
)
METHODS = {
    FULL: Method((NO_DEPTHS,)),
    "mi": Method(),
    "mi-common": Method(COMMON),
    "reconstruction": Method(_estimator("reconstruction"), masks=True),
    "reconstruction_table": Method(_estimator("reconstruction_table"), masks=True),
    "reconstruction_predictor": Method(_estimator("reconstruction_predictor"), masks=True),
    "random": Method(_estimator("random")),
    "random-common": Method(_estimator("random", *COMMON)),
    "mi-half": Method(HALF),
    "informative-half": Method(INFORMATIVE),
    "frequency-half": Method(_estimator("frequency", *HALF)),
    "random-half": Method(_estimator("random", *HALF)),
    "least-half-taught": Method(LEAST, taught=True, budgets=LEAST_BUDGETS),
    "least-half-patient": Method(LEAST, taught=True, budgets=LEAST_BUDGETS, longer=PATIENCE),
    "random-half-patient": Method(_estimator("random", *LEAST), taught=True, budgets=LEAST_BUDGETS, longer=PATIENCE),
    "mi-half-patient": Method(HALF, taught=True, longer=PATIENCE),
    "fixed-3-patient": Method(THREE, taught=True, longer=PATIENCE),
    "full-patient": Method((NO_DEPTHS,), taught=True, longer=PATIENCE),
    "full-warm": Method((NO_DEPTHS,), warm=True),
    "mi-warm": Method(COMMON, warm=True),
    "random-warm": Method(_estimator("random", *COMMON), warm=True),
    "frequency": Method(_estimator("frequency")),
    "fixed-3": Method(THREE),
    "halting": Method((*HALTING, "model.policy.each_token=true"), POLICY),
    "halting-text": Method(HALTING, POLICY),
}


IN_PAPER = (FULL, "halting", "mi", "reconstruction")
"""Methods that it has, and that are evaluated on each domain as there."""


def recipe_of(data: str) -> str:
    return f"classification/faster-{data.partition('-')[0]}-mi"


def files_of(data: str, fold: int | None = None) -> tuple[str, ...]:
    """Changes that name the data of a domain or of a fold; none where the recipe names it."""
    whole, _, domain = data.partition("-")
    if domain and whole == "amazon16":
        return tuple(f"data.{split}=data/amazon16/{domain}.{split}.tsv" for split in SPLITS)
    if fold is not None:
        return tuple(f"data.{split}=data/{whole}/fold{fold}/{split}.tsv" for split in SPLITS)
    return ()


def masked_job(data: str, fold: int | None = None) -> Job:
    """The masked language model of a data set, which finds depths by reconstruction."""
    known = files_of(data, fold) or tuple(f"data.{split}={name}" for split, name in _files_in_recipe(data).items())
    name = f"faster-{data}-masked" if fold is None else f"faster-{data}-cv/fold{fold}/masked"
    epochs = MASKED_EPOCHS.get(data, 15 if data.startswith("amazon16-") else 1)
    changes = (*known, f"training.max_epochs={epochs}")
    return Job(name, "masked_language_modeling/anytime", changes, (VALID,))


def _files_in_recipe(data: str) -> dict[str, str]:
    found = read_recipe(recipe_of(data)).data
    return {split: files[0] for split in SPLITS if (files := getattr(found, split))}


def jobs(
    sets: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    folds: bool = False,
    more: Sequence[str] = (),
    begin: str | None = None,
) -> list[Job]:
    """What is to be trained, each behind what it needs, from the pretrained model or where ``deepen`` began."""
    found: dict[str, Job] = {}
    for data, name in product(sets, methods):
        for seed in range(1, FOLDS + 1) if folds else seeds:
            one = _job_and_needs(data, name, seed, seed if folds else None, more, begin)
            found |= {job.name: job for job in one}
    return list(found.values())


def _job_and_needs(
    data: str, name: str, seed: int, fold: int | None, more: Sequence[str], begin: str | None
) -> list[Job]:
    """One job behind those that it needs."""
    method, needed = METHODS[name], list[Job]()
    budget = method.budgets.get(data, method.budgets[ELSEWHERE]) * (DEEPER_BLOCKS // BLOCKS if begin else 1)
    own = (f"{BUDGET}={budget}" if change == BUDGET else change for change in method.changes)
    changes = [f"seed={seed}", *files_of(data, fold), *own, *more]
    if method.longer > 1:
        changes.append(f"training.max_epochs={method.longer * read_recipe(recipe_of(data)).training.max_epochs}")
    if method.masks or method.warm:
        needed = [masked_job(data, fold)]
    if method.taught:
        needed = _job_and_needs(data, FULL, seed, fold, more, begin)
    runs = [f"{RUNS}/{job.name}" for job in needed]
    if method.warm:
        changes += [f"{BEGIN}={runs[0]}", NO_EXITS]
    if method.masks:
        changes.append(f"{MASKED_RUN}={runs[0]}")
        changes += [f"model.word_depths.copies={COPIES}"] * (data.partition("-")[0] in LONG)
    if begin and not (method.warm or method.taught):
        changes += [f"{BEGIN}={begin}", *[NO_EXITS] * (method.evaluations != POLICY)]
    if method.taught:
        changes += [f"{BEGIN}={runs[0]}", f"{TEACHER}.run={runs[0]}", *TAUGHT]
    kind = (name if fold is None else f"{name}-cv") + (f"-from-{Path(begin).name}" if begin else "")
    needs = tuple(job.name for job in needed)
    job = Job(f"faster-{data}-{kind}-{seed}", recipe_of(data), tuple(changes), _evaluations(data, name), needs)
    return [*needed, job]


def _evaluations(data: str, name: str) -> tuple[Evaluation, ...]:
    method = METHODS[name]
    if data != "amazon16" or name not in IN_PAPER:
        return method.evaluations
    depth = next((each.arguments for each in method.evaluations if each.name == "test-policy"), ())
    domains = (Evaluation(f"test-{name}", (*depth, f"data.test=data/amazon16/{name}.test.tsv")) for name in DOMAINS)
    return (*method.evaluations, *domains)


def sweep_jobs(sweep: str, sets: Sequence[str], seeds: Sequence[int], begin: str | None) -> Iterator[Job]:
    """The lambda of reconstruction (Table 4), the weights of its layers' losses, or the number of blocks (Figure 3)."""
    if sweep == "penalty":
        for data, penalty in product(sets, PENALTIES):
            more = (f"model.word_depths.penalty={penalty}",)
            for job in jobs([data], ["reconstruction"], seeds, more=more):
                is_masked = job.recipe != recipe_of(data)
                name = job.name if is_masked else job.name.replace("reconstruction", f"penalty-{penalty}")
                yield replace(job, name=name)
        return
    if sweep == "weights":
        for data, (kind, change) in product(sets, WEIGHTS.items()):
            masked = masked_job(data)
            weighted = replace(masked, name=f"{masked.name}-{kind}", changes=(*masked.changes, change))
            yield weighted
            for job in jobs([data], ["reconstruction"], seeds)[1:]:
                changes = tuple(each.replace(masked.name, weighted.name) for each in job.changes)
                yield replace(job, name=f"{job.name}-{kind}", changes=changes, needs=(weighted.name,))
        return
    for data, name, num_layers in product(
        sets, ("full", "mi", "halting"), range(1, 1 + (DEEPER_BLOCKS if begin else BLOCKS))
    ):
        if name == "halting" and num_layers == 1:
            continue  # nobody can leave before the only block
        for job in jobs([data], [name], seeds, more=(f"model.encoder.num_layers={num_layers}",), begin=begin):
            yield replace(job, name=f"{job.name}-layers-{num_layers}")


def kept_in(runs: Path, job: Job) -> Job:
    """The job where runs, and so those that it needs, are kept in this folder."""
    places = {f"{RUNS}/{need}": f"{runs}/{need}" for need in job.needs}
    options = (change.partition("=") for change in job.changes)
    return replace(job, changes=tuple(f"{name}={places.get(value, value)}" for name, _, value in options))


def write_folds(files: Sequence[Path], into: Path) -> None:
    """Lines dealt out to five folds in turn; the fold behind the test fold is for validation."""
    lines = sorted({line for file in files for line in file.read_text(encoding="utf-8").splitlines() if line})
    parts = [lines[number::FOLDS] for number in range(FOLDS)]
    for number in range(FOLDS):
        chosen = {"test": number, "valid": (number + 1) % FOLDS}
        rest = [line for other, part in enumerate(parts) if other not in chosen.values() for line in part]
        folder = into / f"fold{number + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        for split, content in {"train": rest, **{name: parts[part] for name, part in chosen.items()}}.items():
            (folder / f"{split}.tsv").write_text("".join(f"{line}\n" for line in content), encoding="utf-8")


def shown_tables() -> str:
    """Tables 2 to 4 of the paper, and what was published beside what was measured."""
    measured = results.rows(record for path in sorted(results.RECORDS.glob("*.json")) for record in results._json(path))
    descriptions = yaml.safe_load(results.TABLES.read_text(encoding="utf-8"))
    parts = [
        f"{description['label']}\n\n{results.table(description, measured)}"
        for name, description in descriptions.items()
        if name.startswith(TABLES)
    ]
    return "\n".join(parts)


def speed(runs: Sequence[str], rows: Sequence[int], most: int, device: str) -> None:
    """Texts in a second by both executors, for batches of so many rows."""
    import faster_speed

    for line in faster_speed.measured(runs, rows, most, device):
        print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("plan", "run"):
        command = commands.add_parser(name)
        command.add_argument("--sets", default="trec,mr,sst2", help="data sets, such as trec, amazon16, amazon16-books")
        command.add_argument("--methods", default="full,mi,random", help=", ".join(METHODS))
        command.add_argument("--seeds", default="1")
        command.add_argument("--folds", action="store_true", help="five folds in the place of seeds")
        command.add_argument("--sweep", choices=("penalty", "weights", "layers"))
        command.add_argument("--from", dest="begin", help="the run of 12 blocks that models begin with")
        command.add_argument("--runs", type=Path, default=Path(RUNS))
        command.add_argument("--into", type=Path, default=RECORD, help="file of records")
        command.add_argument("--at-once", type=int, default=1, help="runs side by side")
        command.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
        command.add_argument("extra", nargs="*", help="more changes for every training, such as training.max_updates=2")
    folded = commands.add_parser("folds")
    folded.add_argument("files", nargs="+", type=Path)
    folded.add_argument("--into", type=Path, required=True)
    timed = commands.add_parser("speed")
    timed.add_argument("runs", nargs="+")
    timed.add_argument("--rows", default="1,8,32")
    timed.add_argument("--most", type=int, default=256, help="texts that are timed")
    timed.add_argument("--device", default="auto")
    both = commands.add_parser("compare")
    both.add_argument("runs", nargs=2)
    both.add_argument("--most", type=int, default=500, help="texts that are compared")
    instead = commands.add_parser("amortised")
    instead.add_argument("exact", help="a run whose depths are found by masking each word")
    instead.add_argument("runs", nargs="+", help="runs of the same data whose depths stand in for these")
    instead.add_argument("--most", type=int, default=500, help="test texts that are compared")
    deeper = commands.add_parser("deepen")
    deeper.add_argument("run", type=Path)
    deeper.add_argument("blocks", type=int)
    deeper.add_argument("--into", type=Path, required=True)
    before = commands.add_parser("depths")
    before.add_argument("--sets", default="trec,mr")
    before.add_argument("--estimators", default="mutual_information,random,frequency")
    before.add_argument("--most", type=int, default=2000, help="texts that are looked at")
    before.add_argument("extra", nargs="*", help="changes of all recipes")
    commands.add_parser("tables")
    options = parser.parse_args(arguments)
    if options.command == "tables":
        print(shown_tables())
        return 0
    if options.command == "folds":
        write_folds(options.files, options.into)
        return 0
    if options.command == "deepen":
        import faster_blocks

        faster_blocks.deepen(options.run, options.blocks, options.into)
        return 0
    if options.command == "depths":
        import faster_depths

        recipes = [recipe_of(data) for data in options.sets.split(",")]
        for line in faster_depths.tabled(recipes, options.estimators.split(","), options.most, options.extra):
            print(line, flush=True)
        return 0
    if options.command == "compare":
        import faster_depths

        print(*faster_depths.compared(*options.runs, options.most), sep="\n")
        return 0
    if options.command == "amortised":
        import faster_depths

        print(*faster_depths.amortised(options.exact, options.runs, options.most), sep="\n")
        return 0
    if options.command == "speed":
        speed(options.runs, [int(number) for number in options.rows.split(",")], options.most, options.device)
        return 0
    sets, methods = options.sets.split(","), options.methods.split(",")
    if unknown := [name for name in methods if name not in METHODS]:
        parser.error(f"{unknown[0]} is none of {', '.join(METHODS)}")
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.sweep is None:
        wanted = jobs(sets, methods, seeds, folds=options.folds, begin=options.begin)
    else:
        wanted = list({job.name: job for job in sweep_jobs(options.sweep, sets, seeds, options.begin)}.values())
    wanted = [kept_in(options.runs, job) for job in wanted]
    if options.command == "run":
        campaign = Campaign(wanted, options.runs, options.into, options.extra, options.at_once, options.seconds)
        return campaign.run()
    print(*lines_of(wanted, options.runs, options.extra), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
