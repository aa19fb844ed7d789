"""What a pipeline's workload is made of: how a model tells `onefold verify` what is right.

    from onefold.model import Table, model

    def apply(scan, tables):
        places = tables["parcels.places"]
        held = places.get(scan["parcel"])
        if held is None or scan["at"] > held["at"]:
            places.put(scan)

    PLACES = Table("parcels.places", topic="parcels.places", key=("parcel",))
    WORKLOAD = model("parcels", apply, inputs=("parcels.scans",), key="parcel", tables=(PLACES,))

The module that a pipeline names as its workload has such a `WORKLOAD`, and `generate(seed, count)` for `onefold produce
--count`, which gives `Input`s. A `Column` says what is different in the table, a `View` must show what a table holds, and
`Inadmissible` is raised for what must be a dead letter. A row that is put may have fields that are no columns: notes, which
`get` gives back and nothing is compared with.

A join has a function and a key for each of its topics, where they differ:

    model("shop", {"shop.orders": order, "shop.payments": payment}, inputs=("shop.orders", "shop.payments"),
          key={"shop.orders": "number", "shop.payments": "order"}, tables=(BILLS,))

A model that has to know more than rows of single keys can hold is a class in a `Workload` of its own, as `onefold new` writes
one: `key(value, source)` and `apply(value, source)` get the values with their `Source`s, in the order in which they lie in
their partitions, and `rows[table][key]` is the row by column and the source that changed it last. Where the topology declares
a tick, `model` is given a `tick` function, or the class has a method `tick(at_ms, source)` and its `Workload` says
`ticks=True`. Of a pipeline that feeds
itself the `Workload` names those inputs in `fed`, and `feeds()` of the model says what the last value makes it write there, or
into a queue: topic, fields, and for a queue the Kafka key if it is not the state key. Such a class has its rows in `TrackedRows`,
one for each table, and sets them in `apply`: output records of rows that follow in `settle` are not compared one by one. If it
has an attribute `record`, each input record is there before `apply` is called: when it was sent, in `timestamp_ms`, and the
sender's `headers`. The function of a `model` finds it at each of its tables, as `places.record`.

`verify` compares the Kafka key of each output record with the state key of its input. Where a handler names another one, by
`Output(key=...)`, the `Table` says so in `kafka_key`: the field that is the key, or a function of the fields.

A table whose rows are added up from its output records says so: `adds` names the columns of which a record says by how much
they grow, and `sums` says which table's rows are summed, by a `Sums`, or gathered into rows, by a `Gathered`.

Topics, tables, fields and columns that no table says are in `not_judged`, each with the reason; `onefold check` asks for them.

It imports nothing of the handler's, or the verdict would prove nothing.
"""

from onefold.verify.decode import Inadmissible
from onefold.verify.derived_tables import Gathered, Sums
from onefold.verify.expect import Column, Table, View, Workload
from onefold.verify.model import Rows, model
from onefold.verify.models import TrackedRows
from onefold.verify.record import Source
from onefold.workloads.shaping import Input

__all__ = [
    "Column",
    "Gathered",
    "Inadmissible",
    "Input",
    "Rows",
    "Source",
    "Sums",
    "Table",
    "TrackedRows",
    "View",
    "Workload",
    "model",
]
