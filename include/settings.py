"""Configuration: small frozen models over the YAML files of one folder; an unknown key is an error.

The folder is `include/config` unless the environment variable LISTING_CONFIG_DIR names another. It holds one file per
enhancement task (`tasks/title.yaml`), one per engine profile (`engines/cpu-smollm2.yaml`), `judge.yaml` and
`pipeline.yaml`.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from include.records import Listing

PROJECT_ROOT = Path(__file__).resolve().parent.parent
TEMPLATES_DIR = PROJECT_ROOT / "include" / "templates"
CONFIG_DIR_VARIABLE = "LISTING_CONFIG_DIR"

Model = TypeVar("Model", bound=BaseModel)


class SettingsError(ValueError):
    """A configuration file is missing, is not YAML, or has a key or value that the project does not know."""


def _is_listing_text(name: str) -> str:
    if Listing.__annotations__.get(name) != "str":
        texts = sorted(key for key, hint in Listing.__annotations__.items() if hint == "str")
        raise ValueError(f"{name!r} is no text field of a listing; there are {texts}")
    return name


Share = Annotated[float, Field(ge=0, le=1)]  # 0.05 is 5%
Count = Annotated[int, Field(gt=0)]
ListingText = Annotated[str, AfterValidator(_is_listing_text)]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineProfile(Frozen):
    """The engine of one task model on one kind of machine.

    `engine_args` and `sampling_params` are vLLM's own. `batch_size` is the client's window: how many prompts are
    submitted at once; with `submit: refill` the window is topped up as prompts finish, with `closed` it empties first.
    """

    name: str
    kind: Literal["vllm", "openai"] = "vllm"
    model: str  # Hugging Face id, or a path (relative to the project) that starts with "." or "/"
    revision: str | None = None
    lora: str | None = None  # adapter folder, applied on the shared base `model`
    merge_lora: bool = False  # fold the adapter into the weights where the engine serves no other
    lineage: str  # names the model's behaviour; part of the staleness key, so a change rewrites the catalogue
    engine_args: dict[str, Any] = {}
    sampling_params: dict[str, Any] = {}
    batch_size: Count
    submit: Literal["refill", "closed"] = "refill"
    engines: Count = 1  # side by side on one device, each with its share of `batch_size` and of the memory
    start_timeout_s: float = Field(default=900.0, gt=0)
    stall_timeout_s: float = Field(default=600.0, gt=0)  # silence with requests in flight after which it counts as dead
    lease_wait_s: float = Field(default=30.0, ge=0)  # for a free device; then `gpu_busy` hands it to the scheduler
    max_engine_deaths: int = Field(default=24, ge=0)  # of one bin; finding one row among 1,024 takes eleven
    max_breaking_rows: int = Field(default=5, ge=0)  # of one bin, that may each break the engine before it is to blame
    environment: dict[str, str] = {}  # for the engine's process, such as VLLM_CPU_KVCACHE_SPACE; never secrets
    connection: str | None = None  # Airflow connection of an OpenAI-compatible endpoint

    @model_validator(mode="after")
    def _window_feeds_engine(self) -> EngineProfile:
        seqs = self.engine_args.get("max_num_seqs")
        if seqs is not None and self.batch_size < int(seqs):
            raise ValueError(f"batch_size {self.batch_size} is below max_num_seqs {seqs}: the engine could never fill")
        return self

    @property
    def devices(self) -> int:
        """GPUs of one engine; 0 for an endpoint."""
        return int(self.engine_args.get("tensor_parallel_size") or 1) if self.kind == "vllm" else 0

    @property
    def is_local(self) -> bool:
        return self.model.startswith((".", "/"))

    def model_path(self) -> str:
        """The model as vLLM wants it: an absolute path for a local folder, the id otherwise."""
        return resolve_path(self.model) if self.is_local else self.model


class LengthLimits(Frozen):
    """Bounds of an accepted text. Words count only in scripts that separate them; see include.validation."""

    min_chars: int = 1
    max_chars: int
    min_words: int = 0
    max_words: int | None = None
    min_sentences: int = 0
    max_sentences: int | None = None

    @model_validator(mode="after")
    def _some_length_fits(self) -> LengthLimits:
        for unit in ("chars", "words", "sentences"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if most is not None and most < least:
                raise ValueError(f"max_{unit} {most} is below min_{unit} {least}: no text could pass")
        return self


class ValidatorSettings(Frozen):
    """Which validators run and their thresholds; the meaning of each is in include.validation."""

    length: LengthLimits
    disabled: frozenset[str] = frozenset()  # reason codes that this task does not use
    max_emoji: int = 0
    max_repeated_ngram_ratio: float = 0.3
    min_letters_for_language: int = 40
    max_copied_ratio: float | None = None  # similarity with the source from which a text counts as copied through
    banned_terms: dict[str, tuple[str, ...]] = {}  # by merchant_id; "*" is every merchant
    breaker_reject_rate: Share | None = None  # a bin above it stops the others; None: 1 - min_validator_pass_rate
    breaker_min_rows: int = 100  # a smaller bin says too little to stop the others


class SamplingSettings(Frozen):
    """How many texts the judge reads; see include.judging.sampling."""

    min_size: Count = 30  # below it the power calculation's normal approximation is poor
    max_size: Count  # cost bound; the needed size comes from the gate's margin, alpha and power
    seed: int = 0


class GateSettings(Frozen):
    """When one enhancement task's copy may be published; see include.judging.gate.

    `mode: demo` compares with the measured baseline of a model that is known to be weak, without calibration; it is
    recorded as an override and shown as a banner.
    """

    mode: Literal["calibrated", "demo"] = "calibrated"
    baseline: Share
    margin: float = Field(gt=0, le=1)
    alpha: float = Field(default=0.05, gt=0, lt=1)
    power: float = Field(default=0.8, gt=0, lt=1)
    max_judge_error_share: Share = 0.05
    drift_horizon: Count = 365  # nights over which the drift alarm keeps its false-alarm rate
    drift_false_alarm: float = Field(default=0.05, gt=0, lt=1)  # chance of any drift alarm within them, at the baseline
    override: str = ""  # why copy may go out on a judge without a usable calibration; recorded with every run
    min_completeness: Share = 0.98  # share of planned listings that got an answer
    min_validator_pass_rate: Share
    max_reason_share: dict[str, Share] = {}  # ceilings by reason code
    min_slice_pass_rate: Share | None = None  # of every bin, merchant and locale; None: half of min_validator_pass_rate
    min_slice_rows: int = 200  # slices with fewer answers are not judged alone

    @model_validator(mode="after")
    def _can_fail(self) -> GateSettings:
        if self.margin > self.baseline:
            raise ValueError(f"margin {self.margin} is above baseline {self.baseline}: the gate could never fail")
        return self


class EscalationSettings(Frozen):
    """Refused answers go to a larger model once, within a budget per run; see include.escalation. Prices are per million tokens."""

    engine: str  # engine profile, of a larger model or of an endpoint
    template: str = "escalation.j2"
    max_texts: Count  # distinct texts
    max_cost: float | None = Field(default=None, gt=0)  # in the currency of the prices
    input_price: float = Field(default=0.0, ge=0)
    output_price: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _cost_can_be_counted(self) -> EscalationSettings:
        if self.max_cost is not None and not (self.input_price or self.output_price):
            raise ValueError("max_cost needs input_price and output_price: without them nothing is ever spent")
        return self


class RoutingSettings(Frozen):
    """A move from a hosted API to our own engine, listing by listing; see docs/batch_api.md."""

    hosted: str  # engine profile of the hosted API, which writes what is not in `share`
    share: dict[str, Share]  # of a merchant's listings that `engine` writes; "*" is every other merchant
    pool: str = Field(default="default_pool", min_length=1)  # Airflow pool of hosted bins: how many ask at a time


class TaskSettings(Frozen):
    """One enhancement task: what is read, how the prompt is made, which model answers, what is accepted."""

    name: str
    output_field: ListingText  # the listing's field that the accepted text replaces
    template: str  # file in include/templates
    prompt_fields: tuple[ListingText, ...] = ("title", "description", "brand", "category", "attributes")
    required_fields: tuple[ListingText, ...] = ("title",)  # a listing whose every one of these is empty is quarantined
    engine: str  # engine profile name
    routing: RoutingSettings | None = None  # None: every listing goes to `engine`
    sampling_params: dict[str, Any] = {}
    thinking: bool = False
    overlong: Literal["quarantine", "shorten"] = "quarantine"
    attempts: Count = 2  # of one text: a cut off, empty or failed answer is asked again with other settings
    validators: ValidatorSettings
    escalation: EscalationSettings | None = None  # None: what is refused keeps the merchant's own copy
    sampling: SamplingSettings
    gate: GateSettings

    @property
    def routes(self) -> tuple[str, ...]:
        """Engine profiles that write copy: our own, and the hosted API's while a switch is under way."""
        return (self.engine, self.routing.hosted) if self.routing else (self.engine,)

    @cached_property
    def template_version(self) -> str:
        """First 12 hex digits of the template file's SHA-256, so that a changed template is a new version by itself."""
        return template_version(self.template)


class JudgeSettings(Frozen):
    """The LLM judge: its engine profile, rubric and sampling."""

    engine: str
    template: str = "judge.j2"
    sampling_params: dict[str, Any] = {}
    max_claims: int = 5
    max_claim_chars: int = 160
    attempts: int = 2
    calibration: str | None = None  # calibration file used while the state URL holds none
    max_calibration_age_days: int = 180
    min_kappa: float = 0.4  # agreement with people below which the judge may not gate
    min_youden: float = 0.4  # sensitivity + specificity - 1


class CatalogSettings(Frozen):
    """The merchant catalog's table; `columns` maps our field names to the table's column names."""

    table: str = "listings"
    columns: dict[str, str] = {}
    updated_column: str = "updated_at"
    default_locale: str = "en-US"
    batch_rows: Count = 5_000
    # all: every row is compared with the warehouse. window: only rows changed since the last complete run, for large
    # catalogs whose updated column can be trusted; late arrivals are caught up to `lateness_hours`.
    read: Literal["all", "window"] = "all"
    lateness_hours: float = Field(default=24.0, ge=0)
    # Copy of listings that a complete read no longer holds is retired, unless a merchant would lose more than this share.
    max_withdrawn_share: Share = 0.5


class FeedSettings(Frozen):
    """Merchant feed files in the Google product-data convention; see include.extraction.feeds.

    `url` is a path or object-store URL; `{merchant}` in it stands for any merchant and `{date}` for the partition date. With
    a date it is a snapshot of that day; without one the file is rewritten in place, and only its latest state is known.
    """

    url: str
    merchant_id: str | None = None  # None: from `{merchant}` in the URL, or from the file's merchant_id column
    format: Literal["auto", "tsv", "csv", "xml", "jsonl"] = "auto"
    encoding: str = "auto"
    locale: str | None = None  # of rows that say none; None: the catalog's default
    columns: dict[str, str] = {}  # our field names to the file's column names, where its names are its own


class WatchSettings(Frozen):
    """When a run counts as late or silent; see include.reporting.watch."""

    days: int = Field(default=3, ge=1, le=31)  # that a partition date is looked at, from its end on
    due_hours: float = Field(default=12.0, gt=0)  # after the end of the partition date; the watch must last longer
    silent_minutes: float = Field(default=60.0, gt=0)  # without a new file; generation writes one every minute

    @model_validator(mode="after")
    def _lateness_is_seen(self) -> WatchSettings:
        if self.due_hours >= 24 * self.days:
            raise ValueError(f"due_hours {self.due_hours:g} is not below {self.days} days: no late run would be told")
        return self


class PipelineSettings(Frozen):
    """Where data and state live and how work is cut up."""

    data_url: str = "build/data"
    state_url: str = "build/state"
    catalog: CatalogSettings = CatalogSettings()
    feeds: tuple[FeedSettings, ...] = ()  # when there are any, they are read instead of the catalog's table
    readers: Count = 1  # processes that read the sources side by side
    rows_per_shard: Count = 20_000
    max_bins: int = Field(default=64, gt=0, le=1024)  # Airflow refuses to expand over more than 1,024
    min_rows_per_bin: Count = 2_000
    rows_per_part: Count = 500
    seconds_per_part: float = Field(default=60.0, gt=0)  # longest that a finished answer waits to be written
    publish_together: bool = False
    holdout_share: dict[str, Share] = {}  # by merchant_id; "*" is every merchant
    opted_out_merchants: frozenset[str] = frozenset()
    lease_minutes: Count = 12 * 60
    watch: WatchSettings = WatchSettings()
    gpu_queue: str | None = Field(default=None, min_length=1)  # of tasks with an engine; None: Airflow's default queue
    gpu_pod_template: str | None = None  # pod template file of such tasks, for the KubernetesExecutor; None: Airflow's


class Settings(Frozen):
    """Everything, as one value that can be stored with a run."""

    tasks: dict[str, TaskSettings]
    engines: dict[str, EngineProfile]
    judge: JudgeSettings
    pipeline: PipelineSettings

    @model_validator(mode="after")
    def _names_resolve(self) -> Settings:
        for owner, engine in [
            *((f"tasks/{t.name}", engine) for t in self.tasks.values() for engine in t.routes),
            *((f"tasks/{t.name}", t.escalation.engine) for t in self.tasks.values() if t.escalation),
            ("judge", self.judge.engine),
        ]:
            if engine not in self.engines:
                raise ValueError(f"{owner}.yaml names engine profile {engine!r}; there are {sorted(self.engines)}")
        for task in (task for task in self.tasks.values() if task.routing):
            own, hosted = (self.engines[name] for name in task.routes)
            wrong = "" if hosted.kind == "openai" and hosted.connection else "needs `kind: openai` and a `connection`"
            if own.lineage == hosted.lineage:
                wrong = f"has `engine`'s lineage, {own.lineage!r}: give each its own, or nothing moves"
            if wrong:
                raise ValueError(f"tasks/{task.name}.yaml: routing.hosted {hosted.name!r} {wrong}")
        return self

    def task(self, name: str) -> TaskSettings:
        if name not in self.tasks:
            raise SettingsError(f"no enhancement task {name!r}; configured are {sorted(self.tasks)}")
        return self.tasks[name]


def resolve_path(path: str) -> str:
    """Absolute form of a path that may be relative to the project root; URLs with a scheme are left alone."""
    return path if "://" in path else str((PROJECT_ROOT / path).resolve())


def digest(value: object, length: int = 16) -> str:
    """Short stable hash of any JSON value (sorted keys)."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def template_version(template: str) -> str:
    """Version of a template file by its content. Raises SettingsError when there is no such file."""
    path = TEMPLATES_DIR / template
    if not path.is_file():
        raise SettingsError(f"no template {path}; templates lie in include/templates")
    return digest(path.read_text(encoding="utf-8"), 12)


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a key given twice is an error: PyYAML takes the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1 and key != "<<"]:
            raise yaml.constructor.ConstructorError(None, None, f"key {twice[0]!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_settings_file(path: Path, model: type[Model], **names: str) -> Model:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader) or {}  # noqa: S506  # a SafeLoader
        if not isinstance(values, dict):
            raise SettingsError(f"{path} is not valid: it must hold keys and values, not a {type(values).__name__}")
        if changed := [key for key in names if values.get(key, names[key]) != names[key]]:
            raise SettingsError(f"{path} is not valid:\n  {changed[0]}: comes from the file's name; leave the key out")
        return model.model_validate({**values, **names})
    except OSError as error:
        raise SettingsError(
            f"cannot read {path}: {error.strerror}; set {CONFIG_DIR_VARIABLE} or add the file"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not YAML: {error}") from error
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or '(file)'}: {e['msg']}" for e in error.errors()]
        raise SettingsError(f"{path} is not valid:\n" + "\n".join(lines)) from error


def load_settings(config_dir: str | Path | None = None) -> Settings:
    """Loads one configuration folder. Raises SettingsError naming file, key and fault; also for a missing template."""
    folder = Path(config_dir or os.environ.get(CONFIG_DIR_VARIABLE) or PROJECT_ROOT / "include" / "config")
    tasks = {p.stem: read_settings_file(p, TaskSettings, name=p.stem) for p in sorted(folder.glob("tasks/*.yaml"))}
    if not tasks:
        raise SettingsError(f"no enhancement task in {folder}/tasks; add one YAML file per task")
    engines = {p.stem: read_settings_file(p, EngineProfile, name=p.stem) for p in sorted(folder.glob("engines/*.yaml"))}
    judge = read_settings_file(folder / "judge.yaml", JudgeSettings)
    pipeline = read_settings_file(folder / "pipeline.yaml", PipelineSettings)
    escalated = [task.escalation.template for task in tasks.values() if task.escalation]
    for template in (judge.template, *escalated, *(task.template for task in tasks.values())):
        template_version(template)
    try:
        return Settings(tasks=tasks, engines=engines, judge=judge, pipeline=pipeline)
    except ValidationError as error:
        raise SettingsError(f"{folder}: {error.errors()[0]['msg']}") from error
