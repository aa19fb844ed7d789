"""Every event processed exactly once: Kafka to Postgres with right numbers, and the verification.

A pipeline is a literal, a `Topology`, of a handler with input and output topics:

    from onefold import Event, Outputs, Rejected, Topology

    def handle(parcel: Parcel | None, event: Event) -> tuple[Parcel | None, Outputs]: ...

    TOPOLOGY = Topology(name="parcels", inputs=("parcels.scans",), key=lambda scan: scan.parcel, state=Parcel,
                        handle=handle, outputs={"parcels.places": ("parcel",)})

`Topology` is a pipeline's declaration, and documents the guaranteed order. A handler gets an `Event`, returns `Outputs` of
`Output` beside the state, and refuses an event by `Rejected`. To use time, a pipeline declares a `Tick`, and counts by minute
or by day with `onefold.windows`. Every further exception of a handler is a bug: the record becomes a dead letter with the
error and the handler's line.

These names, and those of `onefold.windows`, `onefold.effects`, `onefold.testing`, `onefold.model` and `onefold.view`, are the
public names, and enough for a pipeline: the rest may change with any version. Importing the public names loads no client of
Kafka, Spark or Postgres. docs/api.md lists the names.
"""

from onefold.processor.core.errors import Rejected
from onefold.processor.core.topology import Tick, Topology
from onefold.processor.core.values import Event, Output, Outputs

__all__ = ["Event", "Output", "Outputs", "Rejected", "Tick", "Topology"]
