"""Load the topology and the codec of a declared pipeline. The module imports no Kafka client: `onefold check` has none."""

from onefold import names, pipelines
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured, Refused
from onefold.processor.core.topology import Topology
from onefold.processor.io import contracts
from onefold.processor.io.registry import ConfluentRegistry
from onefold.processor.io.serde import AvroCodec


def topology_of(name: str) -> Topology:
    """Load the topology of the pipeline `name`.

    Raises:
        Misconfigured: the pipeline does not exist, or its topology does not load.
    """
    try:
        return load_topology(pipelines.find()[name])
    except (pipelines.InvalidDeclaration, Refused) as fault:
        raise Misconfigured(getattr(fault, "code", Code.PIPELINE_WRONG), str(fault)) from fault


def load_topology(pipeline: pipelines.Pipeline) -> Topology:
    """The topology, which is one, and of that name. Raises `pipelines.InvalidDeclaration`."""
    topology = pipeline.load_topology()
    if not isinstance(topology, Topology):
        raise pipelines.InvalidDeclaration(
            f"{pipeline.declared_in}: {pipeline.topology} is a {type(topology).__name__}, and no Topology"
        )
    if topology.name != pipeline.name:
        raise pipelines.InvalidDeclaration(
            f"{pipeline.declared_in}: the pipeline {pipeline.name} has a topology that is called {topology.name}; "
            f"give both one name"
        )
    where = f"{pipeline.declared_in}: pipeline {pipeline.name}"
    own = own_topics(pipeline, topology)
    for topic in (*topology.inputs, *topology.outputs):
        if topic in own:
            raise pipelines.InvalidDeclaration(
                f"{where}: the topic {topic} is {own[topic]}; give the topic of {pipeline.topology} another name"
            )
    for topic in (*topology.inputs, *topology.outputs, *own):
        if fault := names.fault_of_topic(topic):
            raise pipelines.InvalidDeclaration(f"{where}: the topic {topic} {fault}")
    return topology


def own_topics(pipeline: pipelines.Pipeline, topology: Topology) -> dict[str, str]:
    """The topics of a pipeline beside inputs and outputs, each with a description of the content."""
    return {
        topology.changelog: "the changelog of the pipeline's states",
        topology.decisions: "the log in which the pipeline's replicas decide",
        **({topology.order: "where the pipeline writes down the order of its inputs"} if topology.order else {}),
        topology.replays: "where the pipeline keeps the receipts of replays",
        names.pauses_topic(topology.name): "where the pauses of the pipeline are",
        **{topic: f"where the dead letters of {of} go" for of, topic in topology.dead.items()},
        **dict.fromkeys(pipeline.topics_of_workers, "one that the pipeline's workers write"),
    }


def codec_of(topology: Topology, schema_registry_url: str | None = None) -> AvroCodec:
    """Make the codec of a topology from the schemas of its pipeline.

    Raises:
        Misconfigured: a schema is missing or invalid, or the registry's URL is invalid.
    """
    try:
        folder = pipelines.find()[topology.name].contracts
        found = contracts.load(folder, (*topology.inputs, *topology.outputs))
    except (pipelines.InvalidDeclaration, Refused) as fault:
        raise Misconfigured(getattr(fault, "code", Code.PIPELINE_WRONG), str(fault)) from fault
    missing = [topic for topic in (*topology.inputs, *topology.outputs) if topic not in found]
    if missing:
        raise Misconfigured(Code.SCHEMA_MISSING, f'no schema in {folder} names the topic {missing[0]} in its "topics"')
    try:
        registry = ConfluentRegistry(schema_registry_url) if schema_registry_url else None
    except Refused as fault:
        raise Misconfigured(fault.code, str(fault)) from fault
    return AvroCodec(topology, found, registry)
