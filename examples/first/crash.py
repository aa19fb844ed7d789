from onefold.testing import TopologyDriver
from orders import TOPOLOGY

driver = TopologyDriver(TOPOLOGY, contracts="avro")
first = {"id": "A-1", "customer": "Ada", "cents": 1200, "version": 1}
for order in (first, first, {**first, "id": "A-2", "cents": 300}):  # the first order is sent twice
    driver.send("orders.orders", order)
driver.crash_at("before_commit")  # the process dies with everything computed and nothing committed
driver.run()
print(driver.table("orders.totals"), "after", driver.restarts, "restart")
