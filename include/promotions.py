"""The engine profile in force: one that tuning found faster and no worse replaces the configured one, device by device.

Under the state URL, `engines/<profile>/<device>/<version>.json` holds each promotion with its evidence, and `current.json`
beside them names the one in force. A promotion changes how a model is run and nothing else: lineage, adapter and sampling
stay the configuration's, so that no listing becomes stale by it.
"""

from __future__ import annotations

import logging
import os
import re
from datetime import UTC, datetime
from typing import Any

from pydantic import AwareDatetime

from include.partitions import Store, TornPartError
from include.settings import EngineProfile, Frozen, Settings, resolve_path

log = logging.getLogger(__name__)

CURRENT = "current.json"
_TUNED = {"model", "revision", "engine_args", "environment", "batch_size", "submit", "engines"}


def identity(profile: EngineProfile) -> dict[str, str | None]:
    """What a promotion is bound to: the configured model and its behaviour."""
    return {name: getattr(profile, name) for name in ("model", "revision", "lora", "lineage")}


class Promotion(Frozen):
    """A profile that was put in force, why, by whom, and what stood before it (None: the configured profile)."""

    version: str
    profile: EngineProfile
    configured: dict[str, str | None]  # the configured profile's identity then; another one now ends the promotion
    before: str | None
    evidence: dict[str, Any]
    versions: dict[str, str]
    approved_by: str
    promoted_at: AwareDatetime

    def over(self, configured: EngineProfile) -> EngineProfile:
        """The configured profile, run the promoted way."""
        return EngineProfile.model_validate(configured.model_dump() | self.profile.model_dump(include=_TUNED))

    def tuned_rate(self) -> float | None:
        """Requests a second that tuning measured of this profile, the median of its finalist; None where no evidence says."""
        profile, result = self.profile.model_dump(mode="json"), self.evidence.get("result") or {}
        for row in result.get("finalists", ()):
            if all(profile.get(name) == value for name, value in row["profile"].items()):
                return float(row["requests_per_s"])
        return None


def _place(settings: Settings, name: str, device: str = "") -> Store:
    safe = "_".join(re.findall(r"[A-Za-z0-9-]+", device))
    return Store(resolve_path(settings.pipeline.state_url)).child("engines", name, *([safe] if device else []))


def current(settings: Settings, name: str, device: str) -> Promotion | None:
    """The promotion in force. None, with a warning, for one that cannot be read, was made for another model, or runs a folder
    that this machine has not.

    Raises nothing for what lies under the state URL: a night is slower without its promotion, and must not fail for it.
    """
    store = _place(settings, name, device)
    try:
        if (version := (store.read_json(CURRENT) or {}).get("version")) is None:
            return None
        found = Promotion.model_validate(store.read_json(f"{version}.json"))
    except (OSError, TornPartError, ValueError, AttributeError) as error:
        log.warning("the promotion of %s on %s cannot be read, the configured profile runs: %s", name, device, error)
        return None
    if found.configured != identity(settings.engines[name]):
        log.warning("promotion %s of %s on %s was made for another model than the configured one and is ignored",
                    version, name, device)  # fmt: skip
        return None
    own = (
        found.profile.model != settings.engines[name].model
    )  # a checkpoint, not the configured model, which a worker reports
    if own and found.profile.is_local and not os.path.isdir(found.profile.model_path()):
        log.warning("promotion %s of %s on %s runs %s, which is not there: the configured profile runs, make the checkpoint anew",
                    version, name, device, found.profile.model)  # fmt: skip
        return None
    return found


def in_force(settings: Settings, name: str, device: str) -> EngineProfile:
    """The profile that runs on this device: the promoted one, else the configured one."""
    found = current(settings, name, device)
    return found.over(settings.engines[name]) if found else settings.engines[name]


def runs_as(settings: Settings, name: str, device: str, *profiles: EngineProfile) -> bool:
    """Whether what is in force runs as one of these profiles does."""
    now = in_force(settings, name, device).model_dump(include=_TUNED)
    return any(profile.model_dump(include=_TUNED) == now for profile in profiles)


def promote(
    settings: Settings, name: str, device: str, profile: EngineProfile, evidence: dict[str, Any], approved_by: str
) -> str:
    """Puts a profile in force on a device and returns its version.

    Raises ValueError for a profile of another lineage or adapter: that is a new model, which belongs in the configuration.
    """
    configured, now = settings.engines[name], datetime.now(UTC)
    if (profile.lineage, profile.lora) != (configured.lineage, configured.lora):
        raise ValueError(
            f"{name}: a promotion keeps lineage {configured.lineage!r} and its adapter; configure new models"
        )
    before = current(settings, name, device)
    if before and before.profile == profile:  # a task tried again: one promotion, and one step back
        return before.version
    found = Promotion(
        version=f"{now:%Y%m%dT%H%M%S.%fZ}",
        profile=profile,
        configured=identity(configured),
        before=before.version if before else None,
        evidence=evidence,
        versions=evidence.get("versions", {}),
        approved_by=approved_by,
        promoted_at=now,
    )
    store = _place(settings, name, device)
    store.write_json(f"{found.version}.json", found.model_dump(mode="json"))
    store.write_json(CURRENT, {"version": found.version})
    return found.version


def roll_back(settings: Settings, name: str, device: str) -> str | None:
    """Puts back what stood before the current promotion; returns its version, None for the configured profile.

    Every promotion's file is kept. Files that cannot be read lead to the configured profile. Raises ValueError where
    nothing is promoted.
    """
    store, before = _place(settings, name, device), None
    if not (version := _pointer(store)):
        raise ValueError(f"nothing is promoted for {name} on {device}: the configured profile is in force")
    try:
        before = Promotion.model_validate(store.read_json(f"{version}.json")).before
    except (TornPartError, ValueError) as error:
        log.warning("the current promotion of %s on %s cannot be read: %s", name, device, error)
    store.write_json(CURRENT, {"version": before, "rolled_back": version, "at": datetime.now(UTC).isoformat()})
    found = current(settings, name, device)  # None where the one before is gone, torn or of another model, too
    return found.version if found else None


def _pointer(store: Store) -> str:
    """The version that `current.json` names; empty for the configured profile, "unreadable" for a torn file."""
    try:
        return str((store.read_json(CURRENT) or {}).get("version") or "")
    except (TornPartError, AttributeError):
        return "unreadable"


def promoted_devices(settings: Settings, name: str) -> list[str]:
    """Devices, as their folders are named, on which a promotion of this profile is in force."""
    store = _place(settings, name)
    return [at for at in store.list("", suffix="") if store.exists(f"{at}/{CURRENT}") and _pointer(store.child(at))]
