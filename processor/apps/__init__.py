"""The pipelines, one module a domain: the rule in plain words, the state, the handler, the topology."""
