"""The pipelines, a module each: the rule in words, the state, the handler, the topology."""
