"""What Spark logs, by the log4j of a real one."""

from pathlib import Path
from typing import Any

import pytest

from onefold.spark_sink.spark import options


@pytest.mark.parametrize("folder", ["plain", "with blanks, an é", "100 %d of ${sys:user.home} %i"])
def test_the_log_of_spark_is_bounded(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setattr(options, "_LOG_BYTES", 20_000)
    scratch = tmp_path / folder
    scratch.mkdir()
    configuration = tmp_path / "log4j2.properties"
    configuration.write_text(options._log4j(scratch / options.LOG), encoding="ascii")
    context = spark._jvm.org.apache.logging.log4j.core.LoggerContext(
        folder, None, spark._jvm.java.net.URI(configuration.as_uri())
    )
    context.start()
    logger = context.getLogger("onefold.test")
    for number in range(100):
        logger.error(f"error {number} of é: {'x' * 1_000}")
        logger.warn("no error")
    context.stop()
    found = sorted(path.name for path in scratch.iterdir())
    assert found == [options.LOG, f"{options.LOG}.1", f"{options.LOG}.2"]
    texts = {name: (scratch / name).read_text(encoding="utf-8") for name in found}
    assert all(len(text) < 2 * 20_000 for text in texts.values())
    assert "error 99 of é" in texts[options.LOG]
    assert "no error" not in "".join(texts.values())
