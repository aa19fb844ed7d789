import com.fasterxml.jackson.core.JsonEncoding;
import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.StreamReadFeature;
import com.fasterxml.jackson.core.util.ByteArrayBuilder;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.module.blackbird.BlackbirdModule;
import java.io.IOException;
import java.io.Reader;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * The rule of Onefold's pipeline `trades` in Kafka Streams: a version that moves a trade forward gives a delta of its
 * leaf, any other gives nothing.
 *
 * <p>Written for speed, as an expert in Kafka Streams would: the Processor API, parsing by generated access, a state of a
 * few bytes, and output streamed into bytes. The application checks less of a message than Onefold does, and its outputs
 * do not name their input records.
 *
 * <p>Arguments: a file of settings of Kafka Streams, the input topic, the output topic, `memory` or `rocksdb`.
 */
public final class TradeDeltas {
  private static final String STORE = "trades";
  private static final int LEAF = 2 * Long.BYTES; // position of the leaf in a state
  private static final int MILLIONTHS = 6;

  /** A message, with the names of its JSON fields. */
  public static final class Trade {
    public String TradeID;
    public BigDecimal Value;
    public long Version;
    public double Timestamp;
    public Leaf Hierarchy;
  }

  /** The leaf of the hierarchy to which a trade adds. */
  public static final class Leaf {
    public String RiskType;
    public String Region;
    public String TradeDesk;
  }

  /** The last version of each trade, with value and leaf, as bytes of the store. */
  private static final class Deltas implements Processor<String, Trade, String, byte[]> {
    private final JsonFactory json = new JsonFactory();
    private final ByteArrayBuilder written = new ByteArrayBuilder(512);
    private ProcessorContext<String, byte[]> context;
    private KeyValueStore<String, byte[]> states;

    @Override
    public void init(ProcessorContext<String, byte[]> given) {
      context = given;
      states = given.getStateStore(STORE);
    }

    @Override
    public void process(Record<String, Trade> message) {
      Trade trade = message.value();
      byte[] before = states.get(message.key());
      if (before != null && trade.Version <= ByteBuffer.wrap(before).getLong()) {
        return;
      }
      long value = trade.Value.movePointRight(MILLIONTHS).longValueExact();
      byte[] after = state(trade.Version, value, trade.Hierarchy);
      states.put(message.key(), after);
      context.forward(message.withValue(delta(trade, value, before, after)));
    }

    private static byte[] state(long version, long value, Leaf leaf) {
      byte[] name = String.join("\0", leaf.RiskType, leaf.Region, leaf.TradeDesk).getBytes(StandardCharsets.UTF_8);
      return ByteBuffer.allocate(LEAF + name.length).putLong(version).putLong(value).put(name).array();
    }

    private byte[] delta(Trade trade, long value, byte[] before, byte[] after) {
      written.reset();
      try (JsonGenerator out = json.createGenerator(written, JsonEncoding.UTF8)) {
        out.writeStartObject();
        out.writeStringField("trade_id", trade.TradeID);
        out.writeNumberField("version", trade.Version);
        out.writeNumberField("traded_at", Math.round(trade.Timestamp * 1e6));
        out.writeStringField("risk_type", trade.Hierarchy.RiskType);
        out.writeStringField("region", trade.Hierarchy.Region);
        out.writeStringField("trade_desk", trade.Hierarchy.TradeDesk);
        out.writeNumberField("value", value);
        if (before != null) {
          out.writeNumberField("previous_value", ByteBuffer.wrap(before).getLong(Long.BYTES));
          if (!Arrays.equals(before, LEAF, before.length, after, LEAF, after.length)) {
            String[] left = new String(before, LEAF, before.length - LEAF, StandardCharsets.UTF_8).split("\0");
            out.writeStringField("previous_risk_type", left[0]);
            out.writeStringField("previous_region", left[1]);
            out.writeStringField("previous_trade_desk", left[2]);
          }
        }
        out.writeEndObject();
      } catch (IOException impossible) {
        throw new IllegalStateException(impossible); // writes go to memory only
      }
      return written.toByteArray();
    }
  }

  private static Deserializer<Trade> parser() {
    JsonFactory json = JsonFactory.builder().enable(StreamReadFeature.USE_FAST_DOUBLE_PARSER).build();
    ObjectReader reader =
        new ObjectMapper(json)
            .registerModule(new BlackbirdModule())
            .configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false)
            .readerFor(Trade.class);
    return (topic, bytes) -> {
      try {
        return reader.readValue(bytes);
      } catch (IOException malformed) {
        throw new SerializationException(malformed);
      }
    };
  }

  private static Topology topology(String input, String output, boolean inMemory) {
    KeyValueBytesStoreSupplier place =
        inMemory ? Stores.inMemoryKeyValueStore(STORE) : Stores.persistentKeyValueStore(STORE);
    StoreBuilder<KeyValueStore<String, byte[]>> states =
        Stores.keyValueStoreBuilder(place, Serdes.String(), Serdes.ByteArray());
    Topology made = new Topology();
    made.addSource("in", Serdes.String().deserializer(), parser(), input);
    made.addProcessor("deltas", Deltas::new, "in");
    made.addStateStore(inMemory ? states : states.withCachingEnabled(), "deltas");
    made.addSink("out", output, Serdes.String().serializer(), Serdes.ByteArray().serializer(), "deltas");
    return made;
  }

  public static void main(String[] arguments) throws Exception {
    Properties settings = new Properties();
    try (Reader file = Files.newBufferedReader(Path.of(arguments[0]))) {
      settings.load(file);
    }
    KafkaStreams streams =
        new KafkaStreams(topology(arguments[1], arguments[2], arguments[3].equals("memory")), settings);
    CountDownLatch failed = new CountDownLatch(1);
    streams.setStateListener(
        (now, before) -> {
          if (now == KafkaStreams.State.ERROR) {
            failed.countDown();
          }
        });
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
    streams.start();
    failed.await(); // normally a signal ends the process first
    System.exit(1);
  }
}
