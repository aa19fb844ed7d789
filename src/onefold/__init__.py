"""Every event processed exactly once: Kafka to Postgres with right numbers, and the verification.

A pipeline is one literal, a `Topology`, of a handler and the topics that it reads and writes:

    from onefold import Event, Outputs, Rejected, Topology

    def handle(parcel: Parcel | None, event: Event) -> tuple[Parcel | None, Outputs]: ...

    TOPOLOGY = Topology(name="parcels", inputs=("parcels.scans",), key=lambda scan: scan.parcel, state=Parcel,
                        handle=handle, outputs={"parcels.places": ("parcel",)})

`Topology` says what a pipeline declares and which order it is promised, `Event` what a handler is given, `Output` and
`Outputs` what it returns beside its state, and `Rejected` how it refuses an event. A pipeline that needs time declares a
`Tick`, and counts by minute or by day with `onefold.windows`. What else a handler raises is a bug, which costs the record
one dead letter that names the error and the handler's line.

These names, and those of `onefold.windows`, `onefold.effects`, `onefold.testing` and `onefold.model`, are all that a
pipeline needs, and all that is public: everything else may change with any version. To import them loads nothing of Kafka,
Spark or Postgres. docs/api.md lists them.
"""

from onefold.processor.core.errors import Rejected
from onefold.processor.core.topology import Tick, Topology
from onefold.processor.core.values import Event, Output, Outputs

__all__ = ["Event", "Output", "Outputs", "Rejected", "Tick", "Topology"]
