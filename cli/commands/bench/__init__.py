"""`onefold bench`: how fast Onefold is here, on a stack of its own. One module a thing that can be measured."""

HELP = """Measure on a broker and a database of its own, and print figures with what they ran on.

Example: onefold bench processor --instances 1
"""
VERBS = {
    "processor": "Events folded a second.",
    "peers": "Onefold beside Kafka Streams, by turns.",
    "sink": "Output records landed a second.",
    "together": "What several pipelines in one sink cost.",
    "latency": "From produce to a visible row.",
    "jobs": "How long jobs take that arrive in the wrong order.",
    "hot-hot": "How long nothing is decided when a process is killed.",
    "newcomer": "How soon a new replica of many keys is level.",
    "audit": "What the auditor costs, and how soon it names what is wrong.",
    "operate": "How long a verdict, an explained row and a rebuild take.",
    "trades": "The evaluation of the trade risk seed, with an HTML report.",
}
