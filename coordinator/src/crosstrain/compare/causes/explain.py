"""Names the causes of failed checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from crosstrain.compare.causes import evaluation
from crosstrain.compare.causes import found as values
from crosstrain.compare.causes.convention import Convention, Place, stage_of
from crosstrain.compare.causes.data import Change, Reading
from crosstrain.compare.causes.operations import Operation
from crosstrain.compare.causes.search import Ids, Match, holds, ratio_of, search, search_pairs, search_update
from crosstrain.compare.causes.table import BY_ID, CONVENTIONS
from crosstrain.compare.causes.update_place import UpdatePlace, own_start
from crosstrain.compare.certificate.certify import Certificate
from crosstrain.compare.certificate.comparison import Check, Problem
from crosstrain.compare.numerics import bounds
from crosstrain.compare.numerics.bounds import Arrays

#: Names of the cause of what follows from masks that the engine drew itself.
_OWN_MASKS = ("parallel.masks_of_one_rank", "dropout.own_mask")
_ORDER = {item.id: index for index, item in enumerate(CONVENTIONS)}


@dataclass(frozen=True)
class Cause:
    """Why checks fail: one convention, or some that only together give the engine's values, or none known.

    ``check`` is the first of the ``checks`` that it explains, ``where`` names them all ("backward relu2"), ``ratio``
    is the largest error over its bound under the convention (under the canonical function where ``unknown``).
    ``also`` lists other conventions that explain the same checks, several joined by " + ". ``note`` says which values
    were found, where the convention leaves them open. ``consequences`` are checks that fail because of this cause and
    cannot be judged apart from it.
    """

    ids: Ids
    case: str
    check: Check
    checks: tuple[Check, ...]
    ratio: float
    also: tuple[str, ...] = ()
    consequences: tuple[Check, ...] = field(default=())
    note: str = ""

    @property
    def unknown(self) -> bool:
        """Whether no convention of the table explains the checks."""
        return not self.ids

    @property
    def conventions(self) -> tuple[Convention, ...]:
        """The table's rows."""
        return tuple(BY_ID[item] for item in self.ids)

    @property
    def title(self) -> str:
        """A short name."""
        return " and ".join(item.title for item in self.conventions) or "Unknown cause"

    @property
    def says(self) -> str:
        """What the engine does otherwise, in a sentence per convention and one with the values that were found."""
        if self.unknown:
            return f"No convention that Crosstrain knows explains this: {self.check}."
        return " ".join(filter(None, (*(item.says for item in self.conventions), self.note)))

    @property
    def found_in(self) -> str:
        """Where that is usual."""
        return " ".join(item.found_in for item in self.conventions)

    @property
    def restore(self) -> str:
        """What brings the canonical function back."""
        return " ".join(item.restore for item in self.conventions)

    @property
    def step(self) -> int:
        """The first step that shows it (-1: evaluation)."""
        return self.check.step

    @property
    def where(self) -> tuple[str, ...]:
        """Every place once, in order."""
        places = (f"{check.kind.split(',')[0]} {check.subject}" for check in (*self.checks, *self.consequences))
        return tuple(dict.fromkeys(places))

    @property
    def worst(self) -> Check:
        """The check with the element of largest ratio that has coordinates, or the first."""
        placed = [check for check in self.checks if check.coordinates is not None]
        return max(placed, key=lambda check: check.ratio, default=self.check)


def explain(problem: Problem, records: Mapping[int, Arrays], certificate: Certificate) -> tuple[Cause, ...]:
    """The causes of a certificate's failed checks, in the order of the first check of each.

    An alternative counts where its residual is inside the rounding bound. Those that cannot change the value on
    this data never count, since the check would still fail under them.
    """
    with np.errstate(all="ignore"):
        return _Explanation(problem, records, certificate).causes()


class _Explanation:
    def __init__(self, problem: Problem, records: Mapping[int, Arrays], certificate: Certificate) -> None:
        self.problem = problem
        self.records = records
        self.case = certificate.case
        self.failed = certificate.failed
        self.network = bounds.network_of(problem.model)
        self.matches: dict[int, list[Match]] = {}
        self.followed: dict[int, Ids] = {}
        self.tried: set[tuple[str, str, str]] = set()

    def place(self, index: int) -> Place:
        return Place(self.problem, self.network, self.records, self.failed[index])

    def causes(self) -> tuple[Cause, ...]:
        for index, check in enumerate(self.failed):
            if stage_of(check) not in ("update", "statistics", "evaluation"):
                self.matches[index] = self._search(index)
        self._updates()
        self._reported_losses()
        self._evaluations()
        causes = self._grouped()
        return tuple(sorted(causes, key=lambda cause: self.failed.index(cause.check)))

    def _search(self, index: int) -> list[Match]:
        """Conventions that explained other checks of the same layer come first, and suffice."""
        place, check = self.place(index), self.failed[index]
        if not place.found.size:
            return []
        stage = stage_of(check)
        before = {
            item
            for other, found in self.matches.items()
            if stage_of(self.failed[other]) == stage and self.failed[other].layer == check.layer
            for match in found
            for item in match.ids
            if len(match.ids) == 1
        }
        found = search(place, before) if before else []
        if found:
            return found
        # Pairs are many: they are tried once for every layer and kind, later checks try those that were found.
        key = (stage, check.layer, check.kind)
        known = {
            match.ids
            for other, matches in self.matches.items()
            for match in matches
            if len(match.ids) == 2 and stage_of(self.failed[other]) == stage and self.failed[other].layer == check.layer
        }
        found = search(place, pairs=key not in self.tried and not known)
        self.tried.add(key)
        return found or search_pairs(place, known)

    def _updates(self) -> None:
        steps: dict[int, list[int]] = {}
        for index, check in enumerate(self.failed):
            if stage_of(check) == "update":
                steps.setdefault(check.step, []).append(index)
        places = {
            step: UpdatePlace(self.problem, self.network, self.records, step, tuple(self.failed[i] for i in indices))
            for step, indices in steps.items()
        }
        seen: dict[int, list[Match]] = {}
        pairs = True
        for step, place in places.items():
            seen[step] = search_update(place, most=2 if pairs else 1)
            # Pairs are many: they are tried at one step, and those that were found at all of them.
            pairs = pairs and any(len(match.ids) == 1 for match in seen[step])
        self._spread(seen, places)
        left = next((step for step in places if not seen[step]), None)
        if left is not None:
            seen[left] = search_update(places[left], most=3)
            self._spread(seen, places)
        for step, place in places.items():
            if not seen[step]:
                self._follow(place, steps[step])
        self._one_factor(seen)
        self._one_set(seen, places)
        for step, indices in steps.items():
            for index in indices:
                self.matches[index] = seen[step]

    def _spread(self, seen: dict[int, list[Match]], places: Mapping[int, UpdatePlace]) -> None:
        """Tries what was found together at one step at all others."""
        known = {match.ids: None for matches in seen.values() for match in matches if len(match.ids) > 1}
        for step, place in places.items():
            own = {match.ids for match in seen[step]}
            for ids in known:
                if ids not in own and not any(len(item) == len(ids) for item in own):
                    seen[step] = [*seen[step], *search_update(place, {ids}, len(ids))]

    def _one_factor(self, seen: dict[int, list[Match]]) -> None:
        """Drops a factor of the learning rate that is not the same at all steps, where something else explains them."""
        rates = self.problem.training.learning_rates
        recorded = {step for step in self.records if step >= 0 and rates[step]}
        scaled = {match.ids for matches in seen.values() for match in matches if "rate.scaled" in match.ids}
        varying = set()
        for ids in scaled:
            factors = [match.computed.rate / rates[step] for step in seen for match in seen[step] if match.ids == ids]
            if len(factors) != len(recorded) or np.ptp(factors) > 1e-5 * abs(factors[0]):
                varying.add(ids)
        for step, matches in seen.items():
            if any(match.ids not in varying for match in matches):
                seen[step] = [match for match in matches if match.ids not in varying]

    def _one_set(self, seen: dict[int, list[Match]], places: Mapping[int, UpdatePlace]) -> None:
        """One set of constants for all steps, if there is one: a single step may not show each of them."""
        name = "optimizer.other_constant"
        for ids in {match.ids for matches in seen.values() for match in matches if name in match.ids}:
            own = {step: match.computed for step in seen for match in seen[step] if match.ids == ids}
            rules = list(dict.fromkeys(form.rule for form in own.values()))
            for rule in rules if len(rules) > 1 else ():
                forms = {step: replace(form, rule=rule) for step, form in own.items()}
                if all(forms[step] == form or holds(places[step], forms[step]) for step, form in own.items()):
                    for step, form in forms.items():
                        seen[step] = [m._replace(computed=form) if m.ids == ids else m for m in seen[step]]
                    break

    def _reported_losses(self) -> None:
        """The loss of a training step that drew another dropout mask than the recording pass."""
        if self._own_masks():
            for index, check in enumerate(self.failed):
                if check.kind == "loss" and check.subject == "training step" and not self.matches.get(index):
                    self.followed[index] = _OWN_MASKS

    def _own_masks(self) -> bool:
        """Whether the engine was found to draw dropout itself."""
        return any("dropout.own_mask" in match.ids for found in self.matches.values() for match in found)

    def _follow(self, place: UpdatePlace, indices: Sequence[int]) -> None:
        """Updates that differ since the training pass differs from the recorded one in the way already found."""
        if self._own_masks():
            # Another mask in every pass: the recorded gradient is not the one that was used.
            self.followed.update({index: _OWN_MASKS for index in indices})
            return
        ids = {item for found in self.matches.values() for match in found for item in match.ids}
        short = next((item for item in sorted(ids) if item.startswith("precision.")), None)
        if short:
            bits = 8 if short == "precision.bfloat16" else 11
            wide = {name: value * 2.0 ** (24 - bits) for name, value in place.local.items()}
            if place.with_errors(wide).ratio(place.canonical()) <= 1:
                self.followed.update({index: (short,) for index in indices})

    def _evaluations(self) -> None:
        operations, layer_ids = self._operations()
        change, change_ids = self._change()
        for index, check in enumerate(self.failed):
            stage = stage_of(check)
            if stage not in ("statistics", "evaluation"):
                continue
            place = self.place(index)
            if stage == "evaluation" and (operations or change):
                form = evaluation.Evaluation(operations, change)
                ratio = ratio_of(form, place)
                if ratio <= 1:
                    self.followed[index] = (*change_ids, *layer_ids)
                    continue
            found = search(place)
            if not found and stage == "statistics" and (operations or change):
                # The statistics of the training set follow from what the layers before compute.
                self.followed[index] = (*change_ids, *layer_ids)
            self.matches[index] = found

    def _operations(self) -> tuple[dict[str, Operation], Ids]:
        """What layers were found to compute in training, from their forward checks."""
        operations: dict[str, Operation] = {}
        ids: list[str] = []
        for index, found in self.matches.items():
            check = self.failed[index]
            if check.kind == "forward" and found and not any(item.startswith("dropout.") for item in found[0].ids):
                best = min(found, key=self._rank)
                operations.setdefault(check.layer, best.computed)
                ids.extend(best.ids)
        return operations, tuple(dict.fromkeys(ids))

    def _change(self) -> tuple[Change | None, Ids]:
        for index, found in self.matches.items():
            if stage_of(self.failed[index]) == "input" and found:
                best = min(found, key=self._rank)
                reading = best.computed
                if isinstance(reading, Reading) and reading.changes:
                    return reading.changed, best.ids
        return None, ()

    def _rank(self, match: Match) -> tuple[int, int, int]:
        return len(match.ids), max(BY_ID[item].specific for item in match.ids), min(_ORDER[item] for item in
        match.ids)

    def _grouped(self) -> list[Cause]:
        open_ = {index for index in range(len(self.failed)) if self.matches.get(index)}
        causes: list[Cause] = []
        while open_:
            options: dict[Ids, list[int]] = {}
            ranks: dict[Ids, tuple[int, int, int]] = {}
            for index in sorted(open_):
                for match in self.matches[index]:
                    options.setdefault(match.ids, []).append(index)
                    ranks[match.ids] = self._rank(match)
            best = min(options, key=lambda ids: (-len(options[ids]), ranks[ids]))
            chosen = options[best]
            also = sorted((ids for ids in options if ids != best and set(options[ids]) >= set(chosen)), key=ranks.get)  # type: ignore[arg-type]
            ratio = max(match.ratio for index in chosen for match in self.matches[index] if match.ids == best)
            checks = tuple(self.failed[index] for index in chosen)
            computed = [match.computed for index in chosen for match in self.matches[index] if match.ids == best]
            start = own_start(self.records, self.problem)
            note = values.note(best, computed, self.problem.training.rule, start)
            others = tuple(" + ".join(ids) for ids in also)
            causes.append(Cause(best, self.case, checks[0], checks, ratio, others, note=note))
            open_ -= set(chosen)
        return self._with_the_rest(causes)

    def _with_the_rest(self, causes: list[Cause]) -> list[Cause]:
        """Consequences go to their cause; what is left is unknown, one cause for every part of the computation."""
        rest: dict[tuple[str, str], list[Check]] = {}
        for index, check in enumerate(self.failed):
            if self.matches.get(index):
                continue
            ids = self.followed.get(index, ())
            target = next((at for at, cause in enumerate(causes) if set(cause.ids) & set(ids)), None)
            if target is not None:
                cause = causes[target]
                causes[target] = Cause(
                    cause.ids, cause.case, cause.check, cause.checks, cause.ratio, cause.also,
                    (*cause.consequences, check), cause.note
                )
            else:
                rest.setdefault((stage_of(check), check.layer), []).append(check)
        for checks in rest.values():
            ratio = max(check.ratio for check in checks)
            causes.append(Cause((), self.case, checks[0], tuple(checks), ratio))
        return causes


