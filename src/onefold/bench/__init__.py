"""How fast Onefold is on this machine: figures, printed with what they were measured on. Never a test.

environment a broker and a database of their own, thrown away afterwards, and Onefold's own commands run on them
machine     what this machine is
cpu         processor time of processes over a stretch of time; percentiles
workload    what a bench needs of a pipeline
processor   events folded a second, from a prefilled input topic
sink        output records landed a second, from prefilled output topics
producing   producers, as fast as possible or at a steady rate
follower    one who sends at a steady rate, and one who follows what comes true of it
hot_hot     how long nothing is decided when one of two processes is killed, with replicas and elastic
latency     from produce to visible in Postgres, event by event, at a steady rate
"""
