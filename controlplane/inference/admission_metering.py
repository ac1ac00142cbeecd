"""Limits, journal and ledger of this gateway, as one thing that admission asks: open a request, count it, end it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import redis.asyncio
from django.db import connections

from controlplane import valkey
from controlplane.accounts.permissions import Principal, PrincipalKind
from controlplane.inference.admission_errors import budget_unknown, limits_unavailable, refused
from controlplane.inference.errors import overloaded
from controlplane.inference.journal import JournalFull, UsageJournal, journal_name
from controlplane.inference.journal_shipping import UsageShipper
from controlplane.inference.limits import GatewayLimits
from controlplane.inference.limits_headers import note_windows
from controlplane.inference.limits_local import ALLOWANCE_S, LocalAllowance
from controlplane.inference.limits_subjects import Limited, limited_subjects
from controlplane.inference.limits_valkey import RemoteLimits, ValkeyAway
from controlplane.inference.loops import PeriodicLoop
from controlplane.metering.events import Counts, Ended, Intent, UsageEvent
from controlplane.metering.journal import billable
from controlplane.metering.limit_scripts import OK, month_of, nano_of_pico
from controlplane.metering.pricing import NoPrice, Price, PriceTable, amount_pico, price_table
from controlplane.metering.reservations import Reservation, refund_call
from controlplane.metering.settling import settle_journals

BACKLOG: Final = 100_000
"""Requests that the ledger does not have yet, beyond which nothing more is admitted."""
RESERVATION_GRACE_S: Final = 60.0
"""Reservations outlive the deadline of their request by so long, where nobody settles them."""
PRICES_S: Final = 5.0
ACKS_S: Final = 1.0
RECOVER_S: Final = 30.0
CLOSE_WAIT_S: Final = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request may use at most."""

    request_id: str
    prompt_tokens: int
    max_tokens: int
    model: str
    deployment: str

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens


@dataclass(slots=True)
class Metered:
    """A request that is in the journal. `end` once."""

    metering: Metering
    intent: Intent
    price: Price | None
    limited: tuple[Limited, ...]
    allowance: LocalAllowance | None = None
    """What admitted it while Valkey was away: its place there is given back to this one, not to a later outage's."""

    def give_back(self) -> None:
        """Once."""
        if self.allowance is not None:
            self.allowance.give_back(self.limited)
            self.allowance = None

    def progress(self, counts: Counts) -> None:
        self.metering.journal.progress(
            self.intent.seq,
            pool_hit=counts.pool_hit,
            store_hit=counts.store_hit,
            miss=counts.miss,
            output=counts.output,
        )

    def end(self, counts: Counts, outcome: str) -> None:
        self.metering.end(self, counts, outcome)


class Metering:
    """Of one event loop. `start` opens the journal; `loops` are run by the gateway."""

    def __init__(self, root: Path, *, valkey_url: str, gateway: str, limits: GatewayLimits) -> None:
        self._root = root
        self._gateway = gateway
        self._limits = limits
        self._client: redis.asyncio.Redis = valkey.async_client(valkey_url, timeout_s=limits.valkey_wait_s)
        self._valkey_url = valkey_url
        self._prices: PriceTable | None = None
        """None until they were read once: budgets are not spent from before."""
        self._allowance: LocalAllowance | None = None
        self._task: asyncio.Task[None] | None = None
        self.loops = (
            PeriodicLoop("prices", PRICES_S, self._read_prices),
            PeriodicLoop("ledger", ACKS_S, self._acknowledge),
            PeriodicLoop("journals", RECOVER_S, self._recover),
        )

    def start(self) -> None:
        """Raises OSError where the journal's folder cannot be written."""
        name = journal_name(self._gateway)
        self.journal = UsageJournal(
            self._root, name=name, open_slots=2 * self._limits.concurrent_requests, backlog=BACKLOG
        )
        self.shipper = UsageShipper(self._client, self.journal)
        self._remote = RemoteLimits(self._client, journal=name, ttl_s=self._limits.deadline_s + RESERVATION_GRACE_S)
        self._task = asyncio.create_task(self.shipper.run(), name="usage-shipper")

    async def stop(self) -> None:
        """Sends what it can; what is left stays in the journal for the control queue."""
        if self._task is None:
            return
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self.shipper.drained()
        except TimeoutError:
            log.warning("%d ended requests stay in the journal", self.shipper.waiting)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.journal.close(everything_settled=not self.shipper.waiting)
        await self._client.aclose()

    # --- requests ------------------------------------------------------------------------------------------------

    async def open(self, principal: Principal, demand: Demand) -> Metered:
        """Reserve, then write the intent to disk. Raises ApiError: 402, 429, 503."""
        assert principal.tenant is not None
        now = datetime.now(UTC)
        limited = limited_subjects(principal)
        if self._prices is None and any(one.subject.budgeted for one in limited):
            raise budget_unknown()
        price = self._price(demand.model, now)
        try:
            seq, slot = self.journal.next_place()
        except JournalFull as error:
            raise self._cannot_record(error) from error
        allowance: LocalAllowance | None = None
        written = False
        try:
            allowance = await self._reserve(demand, limited, price, now) if limited else None
            local = allowance is not None
            intent = self._intent(principal, demand, limited, seq=seq, slot=slot, now=now, local=local)
            metered = Metered(self, intent, price, limited, allowance)
            written = True
            await self.journal.admit(intent)
        except JournalFull as error:
            metered.give_back()
            self._undo(demand, limited, now)
            raise self._cannot_record(error) from error
        except asyncio.CancelledError:
            if written:
                metered.end(Counts(), "disconnected")
            else:
                self.journal.give_up(seq, slot)
                self._undo(demand, limited, now)
            raise
        except BaseException:
            self.journal.give_up(seq, slot)
            raise
        return metered

    def end(self, metered: Metered, counts: Counts, outcome: str) -> None:
        intent = metered.intent
        final = Ended(
            seq=intent.seq, outcome=outcome, ended_us=_microseconds(datetime.now(UTC)), **billable(counts, outcome)
        )
        self.journal.end(final)
        metered.give_back()
        cost = 0
        if metered.price is not None:
            cost = amount_pico(metered.price, final.pool_hit + final.store_hit, final.miss, final.output)
        event = UsageEvent(journal=self.journal.name, intent=intent, final=final)
        self.shipper.ship(event, cost_nano=nano_of_pico(cost))

    async def _reserve(
        self, demand: Demand, limited: tuple[Limited, ...], price: Price | None, now: datetime
    ) -> LocalAllowance | None:
        """The local allowance, where that is what admitted. Raises ApiError."""
        cost = amount_pico(price, 0, demand.prompt_tokens, demand.max_tokens) if price is not None else 0
        try:
            verdict = await self._remote.reserve(
                demand.request_id,
                limited,
                tokens=demand.tokens,
                cost_nano=nano_of_pico(cost),
                month=month_of(now),
            )
        except ValkeyAway as error:
            try:
                allowance = self._reserve_locally(demand, limited)
            except BaseException:
                self._undo(demand, limited, now)  # it may have been reserved, though nobody said so
                raise
            log.debug("request %s is admitted from the local allowance: %s", demand.request_id, error)
            return allowance
        self._allowance = None
        note_windows(verdict.windows)
        if verdict.code != OK:
            assert verdict.at is not None
            raise refused(verdict.code, verdict.at, retry_after_s=verdict.retry_after_s)
        return None

    def _reserve_locally(self, demand: Demand, limited: tuple[Limited, ...]) -> LocalAllowance:
        if any(one.subject.budgeted for one in limited):
            raise budget_unknown()
        if self._remote.away_s > ALLOWANCE_S:
            raise limits_unavailable()
        if self._allowance is None:
            self._allowance = LocalAllowance(self.shipper.gateways)
        taken = self._allowance.take(limited, tokens=demand.tokens)
        note_windows(taken.windows)
        if taken.at is not None:
            raise refused(taken.code, taken.at, retry_after_s=ALLOWANCE_S)
        return self._allowance

    def _undo(self, demand: Demand, limited: tuple[Limited, ...], now: datetime) -> None:
        if limited:
            reservation = Reservation(month_of(now), demand.tokens, [one.subject for one in limited])
            self.shipper.refund(refund_call(demand.request_id, reservation, journal=self.journal.name))

    def _intent(
        self,
        principal: Principal,
        demand: Demand,
        limited: tuple[Limited, ...],
        *,
        seq: int,
        slot: int,
        now: datetime,
        local: bool,
    ) -> Intent:
        is_key = principal.kind is PrincipalKind.KEY and principal.root_key != ""  # not a ticket of ours
        assert principal.tenant is not None
        return Intent(
            seq=seq,
            slot=slot,
            request_id=demand.request_id,
            tenant=principal.tenant,
            caller=principal.label.removeprefix("key "),
            key_id=int(principal.id) if is_key else 0,
            root_key=int(principal.root_key) if is_key else 0,
            model=demand.model,
            deployment=demand.deployment,
            gateway=self._gateway,
            admitted_us=_microseconds(now),
            reserved_tokens=demand.tokens,
            subjects=[one.subject for one in limited],
            local=local,
        )

    def _cannot_record(self, error: JournalFull) -> Exception:
        log.error("nothing is admitted: %s", error)
        return overloaded("Usage cannot be recorded at the moment.", retry_after_s=self._limits.retry_after_s)

    def _price(self, model: str, now: datetime) -> Price | None:
        if self._prices is None:
            return None
        try:
            return self._prices.price_at(model, now)
        except NoPrice:
            return None

    # --- loops ---------------------------------------------------------------------------------------------------

    async def _read_prices(self) -> None:
        self._prices = await asyncio.to_thread(_prices)

    async def _acknowledge(self) -> None:
        await self.shipper.acknowledge()

    async def _recover(self) -> None:
        await asyncio.to_thread(_recover, self._root, self._valkey_url)


def _microseconds(instant: datetime) -> int:
    return int(instant.timestamp()) * 10**6 + instant.microsecond


def _prices() -> PriceTable:
    try:
        return price_table()
    finally:
        connections.close_all()


def _recover(root: Path, valkey_url: str) -> None:
    try:
        with valkey.client(valkey_url) as client:
            settle_journals(client, root)
    finally:
        connections.close_all()
