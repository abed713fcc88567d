import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.sql.Time;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Date;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import org.apache.ignite.Ignition;
import org.apache.ignite.binary.BinaryObject;
import org.apache.ignite.binary.BinaryObjectBuilder;
import org.apache.ignite.binary.BinaryObjectException;
import org.apache.ignite.binary.BinaryReader;
import org.apache.ignite.binary.BinaryRawReader;
import org.apache.ignite.binary.BinaryRawWriter;
import org.apache.ignite.binary.BinaryWriter;
import org.apache.ignite.binary.Binarylizable;
import org.apache.ignite.cache.CacheMode;
import org.apache.ignite.cache.QueryEntity;
import org.apache.ignite.cache.affinity.AffinityKey;
import org.apache.ignite.client.ClientCache;
import org.apache.ignite.client.ClientCacheConfiguration;
import org.apache.ignite.client.IgniteClient;
import org.apache.ignite.configuration.BinaryConfiguration;
import org.apache.ignite.configuration.ClientConfiguration;

/**
 * Fills caches with values of every type, says what they are, and later whether others have written the same.
 *
 * Argument: host:port. On the standard output, a JSON array a line: ["case", type, kind of keys, values, null or why
 * there is none] for each type, then ["filled"]. After a line "check" on the standard input: ["back", key, null or what
 * differs] for each row of the cache BACK, then ["checked"]. It ends where its input ends.
 *
 * Of a type T there are the caches PLAIN_T, value -> value (number -> value, where T is no key), and ROW_T, number ->
 * object with the fields field, nested (an object with a field inner), elements (an array of the value and a null), of
 * whose rows the last one has nothing but nulls.
 */
public final class FillTypes {
    enum Color { RED, GREEN, BLUE }

    static class Animal {
        String name;
        int legs;
        Animal friend;

        Animal() { }

        Animal(String name, int legs, Animal friend) {
            this.name = name;
            this.legs = legs;
            this.friend = friend;
        }
    }

    static final class Dog extends Animal {
        boolean barks = true;

        Dog() { }

        Dog(String name) { super(name, 4, null); }
    }

    static final class Wide {
        byte[] large;
        Byte small = 1;

        Wide() { }

        Wide(int size) {
            large = new byte[size];
            Arrays.fill(large, (byte) -7);
        }
    }

    static final class Empty { }

    static final class Shared {
        List<Object> one;
        List<Object> other;
        Animal animal;
        Object[] animals;
    }

    static final class Raw implements Binarylizable {
        int number;
        String text;
        List<Object> more;

        Raw() { }

        Raw(int number, String text) {
            this.number = number;
            this.text = text;
            this.more = new ArrayList<>(Arrays.asList(1, "x", Color.BLUE));
        }

        @Override public void writeBinary(BinaryWriter writer) {
            BinaryRawWriter raw = writer.rawWriter();
            raw.writeInt(number);
            raw.writeString(text);
            raw.writeObject(more);
        }

        @Override public void readBinary(BinaryReader reader) {
            BinaryRawReader raw = reader.rawReader();
            number = raw.readInt();
            text = raw.readString();
            more = raw.readObject();
        }
    }

    static final class HalfRaw implements Binarylizable {
        int number;
        String text;

        HalfRaw() { }

        HalfRaw(int number, String text) {
            this.number = number;
            this.text = text;
        }

        @Override public void writeBinary(BinaryWriter writer) {
            writer.writeInt("number", number);
            writer.rawWriter().writeString(text);
        }

        @Override public void readBinary(BinaryReader reader) {
            number = reader.readInt("number");
            text = reader.rawReader().readString();
        }
    }

    private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private final IgniteClient compact;
    private final IgniteClient full;
    private final Map<String, Object[]> cases = new LinkedHashMap<>();
    private final Set<String> keyless = new HashSet<>();
    private final Set<String> javaOnly = new HashSet<>();

    private FillTypes(String address) {
        compact = client(address, true);
        full = client(address, false);
        compact.getOrCreateCache("BACK");
    }

    private static IgniteClient client(String address, boolean isCompact) {
        return Ignition.startClient(new ClientConfiguration()
            .setAddresses(address)
            .setClusterDiscoveryEnabled(false)
            .setPartitionAwarenessEnabled(false)
            .setAutoBinaryConfigurationEnabled(false)
            .setBinaryConfiguration(new BinaryConfiguration().setCompactFooter(isCompact)));
    }

    private void keys(String type, Object... values) {
        cases.put(type, values);
    }

    private void values(String type, Object... values) {
        cases.put(type, values);
        keyless.add(type);
    }

    /** Types whose classes a node would need to have to make rows of a table out of them. */
    private void javaOnly(String type, Object... values) {
        values(type, values);
        javaOnly.add(type);
    }

    private static Date date(String instant) {
        return new Date(Instant.parse(instant).toEpochMilli());
    }

    private static java.sql.Date sqlDate(String instant) {
        return new java.sql.Date(Instant.parse(instant).toEpochMilli());
    }

    private static Timestamp timestamp(String instant, int nanos) {
        Timestamp made = new Timestamp(Instant.parse(instant).toEpochMilli());
        made.setNanos(nanos);
        return made;
    }

    private void scalars() {
        keys("byte", (byte) 0, Byte.MIN_VALUE, Byte.MAX_VALUE);
        keys("short", (short) -2, Short.MIN_VALUE, Short.MAX_VALUE);
        keys("int", 7, Integer.MIN_VALUE, Integer.MAX_VALUE);
        keys("long", 7L, Long.MIN_VALUE, Long.MAX_VALUE);
        keys("float", 0.1f, -0.0f, 0.0f, Float.NaN, Float.POSITIVE_INFINITY, Float.MIN_VALUE);
        keys("double", 0.1, -0.0, 0.0, Double.NaN, Double.NEGATIVE_INFINITY, Double.MAX_VALUE);
        keys("char", 'Z', '\u4e16', '\ud83d', '\0');
        keys("boolean", true, false);
        keys("String", "", "gr\u00fc\u00dfe, \u4e16\u754c \ud83d\ude00", "a\0b");
        keys("UUID", new UUID(0x0123456789abcdefL, 0xfedcba9876543210L), new UUID(0, 0));
        keys("java.util.Date", date("1970-01-01T00:00:00.001Z"), date("0001-01-01T00:00:00Z"),
            date("9999-12-31T23:59:59.999Z"));
        keys("java.sql.Date", sqlDate("2024-02-29T00:00:00Z"), sqlDate("0001-01-01T00:00:00Z"),
            sqlDate("9999-12-31T00:00:00Z"), sqlDate("1582-10-04T00:00:00Z"));
        keys("Time", new Time(1), new Time(86_399_999), new Time(-3_600_000));
        keys("Timestamp", timestamp("2024-02-29T12:30:15Z", 123_456_789), timestamp("1969-12-31T23:59:59Z", 999_999_999),
            timestamp("0001-01-01T00:00:00Z", 1), timestamp("9999-12-31T23:59:59Z", 999_999_999));
        keys("BigDecimal", new BigDecimal("0.00"), new BigDecimal("-12.340"),
            new BigDecimal(BigInteger.valueOf(-5), -3), new BigDecimal("1234567890123456789012345678901234567.890"));
        keys("enum", Color.RED, Color.BLUE);
    }

    private void arrays() {
        values("byte[]", new byte[] {1, -1, 127}, new byte[0]);
        values("short[]", new short[] {1, -1, Short.MIN_VALUE}, new short[0]);
        values("int[]", new int[] {1, -1, Integer.MIN_VALUE}, new int[0]);
        values("long[]", new long[] {1, -1, Long.MIN_VALUE}, new long[0]);
        values("float[]", new float[] {0.1f, -0.0f, Float.NaN}, new float[0]);
        values("double[]", new double[] {0.1, -0.0, Double.NaN}, new double[0]);
        values("char[]", new char[] {'a', '\u4e16'}, new char[0]);
        values("boolean[]", new boolean[] {true, false}, new boolean[0]);
        values("String[]", new String[] {"a", null, "\u4e16"}, new String[0]);
        values("UUID[]", new UUID[] {new UUID(1, 2), null}, new UUID[0]);
        values("java.util.Date[]", new Date[] {date("2024-02-29T12:30:15.123Z"), null}, new Date[0]);
        values("Time[]", new Time[] {new Time(5), null}, new Time[0]);
        values("Timestamp[]", new Timestamp[] {timestamp("2024-02-29T12:30:15Z", 1), null}, new Timestamp[0]);
        values("BigDecimal[]", new BigDecimal[] {new BigDecimal("1.50"), null}, new BigDecimal[0]);
        values("java.sql.Date[]", new java.sql.Date[] {sqlDate("2024-02-29T00:00:00Z"), null}, new java.sql.Date[0]);
        values("enum[]", new Color[] {Color.GREEN, null}, new Color[0]);
        values("Object[]", new Object[] {1, 2L, "x", null, new Object[] {(byte) 1}, new int[] {3}}, new Object[0]);
        values("Integer[]", new Integer[] {1, null}, new Integer[0]);
        values("array of objects", new Animal[] {new Animal("Tom", 4, null), null}, new Animal[0]);
    }

    private void containers() {
        values("ArrayList", new ArrayList<>(Arrays.asList(1, "x", null, Color.RED)), new ArrayList<>());
        values("LinkedList", new LinkedList<>(Arrays.asList(1L, 2L)));
        values("HashSet", new HashSet<>(Arrays.asList("a", "b", "c")));
        values("LinkedHashSet", new LinkedHashSet<>(Arrays.asList(3, 1, 2)));
        values("HashMap", new HashMap<>(Map.of("a", 1, "b", 2)), new HashMap<>(Map.of(1, new Animal("Tom", 4, null))));
        Map<Object, Object> ordered = new LinkedHashMap<>();
        ordered.put("z", null);
        ordered.put("a", new ArrayList<>(List.of(1)));
        values("LinkedHashMap", ordered);
        javaOnly("TreeSet", new TreeSet<>(List.of("a", "b")));
        javaOnly("List.of", List.of(1, 2), Arrays.asList(1, 2));
    }

    private void objects() {
        keys("object", new Animal("Tom", 4, null), new Animal(null, 0, new Animal("Kit", 3, null)));
        keys("object of a subclass", new Dog("Rex"));
        keys("object without fields", new Empty());
        values("object of some size", new Wide(300), new Wide(70_000));
        Animal self = new Animal("self", 1, null);
        self.friend = self;
        values("object that refers to itself", self);
        Animal a = new Animal("a", 1, new Animal("b", 2, null));
        a.friend.friend = a;
        values("objects in a circle", a);
        Shared shared = new Shared();
        shared.one = new ArrayList<>(List.of(1, 2));
        shared.other = shared.one;
        shared.animal = new Animal("both", 2, null);
        shared.animals = new Object[] {shared.animal, shared.animal};
        values("object that has one twice", shared);
        keys("AffinityKey", new AffinityKey<>("k", 5), new AffinityKey<>(new Animal("Tom", 4, null), "a"));
        values("Binarylizable, raw", new Raw(5, "five"));
        values("Binarylizable, raw behind fields", new HalfRaw(5, "five"));
        values("object of no class", built("Built", 1), built("Built", null), other("Built"));
        values("objects of two types", new Animal("Tom", 4, null), new Empty());
        values("BinaryObject[]", (Object) new Object[] {built("Built", 2)});
        values("enum of no class", declared());
        javaOnly("LocalDate", LocalDate.of(2024, 2, 29));
        javaOnly("BigInteger", BigInteger.valueOf(5));
        javaOnly("Class", String.class);
    }

    private void withFullFooters() {
        keys("object, full footer", new Animal("Tom", 4, new Animal("Kit", 3, null)));
        values("object of some size, full footer", new Wide(300), new Wide(70_000));
        values("raw behind fields, full footer", new HalfRaw(5, "five"));
        values("objects in a circle, full footer", cases.get("objects in a circle"));
    }

    private BinaryObject built(String name, Integer number) {
        return compact.binary().builder(name).setField("number", number, Integer.class).setField("text", "t").build();
    }

    private BinaryObject other(String name) {
        return compact.binary().builder(name).setField("later", 2.5).build();
    }

    private BinaryObject declared() {
        Map<String, Integer> values = new LinkedHashMap<>();
        values.put("SPADES", 0);
        values.put("HEARTS", 7);
        compact.binary().registerEnum("Suit", values);
        return compact.binary().buildEnum("Suit", "HEARTS");
    }

    private void fill() {
        scalars();
        arrays();
        containers();
        objects();
        withFullFooters();
        cases.forEach((type, values) -> {
            List<Object> told = new ArrayList<>();
            for (Object value : values)
                told.add(described(value));
            String why = null;
            try {
                fill(type, values);
            } catch (RuntimeException failure) {
                why = failure.toString();
            }
            say("case", type, keyless.contains(type) ? "number" : "value", told, why);
        });
        say("filled");
    }

    private IgniteClient clientOf(String type) {
        return type.endsWith("full footer") ? full : compact;
    }

    private void fill(String type, Object[] values) {
        IgniteClient client = clientOf(type);
        ClientCache<Object, Object> plain = client.createCache(configuration("PLAIN", type, values[0]));
        ClientCache<Object, Object> rows = client.createCache(configuration("ROW", type, values[0]));
        for (int number = 0; number < values.length; number++) {
            Object value = values[number];
            rows.put(number, row(client, type, value, new Object[] {value, null}));
            plain.put(keyless.contains(type) ? number : value, value);
        }
        rows.put(values.length, row(client, type, null, null));
    }

    private ClientCacheConfiguration configuration(String kind, String type, Object value) {
        boolean isRow = kind.equals("ROW");
        QueryEntity entity = new QueryEntity()
            .setKeyType(isRow || keyless.contains(type) ? "java.lang.Integer" : value.getClass().getName())
            .setValueType(isRow ? typeName("Row", type) : value.getClass().getName())
            .setTableName(kind);
        if (isRow) {
            entity.addQueryField("field", value.getClass().getName(), null);
            entity.addQueryField("nested.inner", value.getClass().getName(), "nested");
            entity.addQueryField("elements", "java.lang.Object", null);
        }
        ClientCacheConfiguration made = new ClientCacheConfiguration()
            .setName(kind + "_" + type)
            .setSqlSchema(kind + "_" + type)
            .setGroupName("TYPES")
            .setCacheMode(CacheMode.REPLICATED);
        return javaOnly.contains(type) ? made : made.setQueryEntities(entity);
    }

    /** A name without a dot: Ignite takes "... java.util.Date" for its own date, whatever stands in front. */
    private static String typeName(String kind, String type) {
        return kind + "_" + type.replace('.', '_');
    }

    private static BinaryObject row(IgniteClient client, String type, Object value, Object[] elements) {
        BinaryObjectBuilder nested = client.binary().builder(typeName("Nested", type));
        nested.setField("inner", value, Object.class);
        BinaryObjectBuilder row = client.binary().builder(typeName("Row", type));
        row.setField("field", value, Object.class);
        row.setField("nested", elements == null ? null : nested.build(), BinaryObject.class);
        row.setField("elements", elements, Object[].class);
        return row.build();
    }

    /** Compares the rows "type/place/number" of the cache BACK with those that were filled in. */
    private void check() {
        ClientCache<Object, Object> back = compact.cache("BACK").withKeepBinary();
        cases.forEach((type, values) -> {
            for (int number = 0; number < values.length; number++) {
                for (String place : new String[] {"value", "field", "nested", "elements", "key"}) {
                    String key = type + "/" + place + "/" + number;
                    if (back.containsKey(key))
                        say("back", key, difference(back, key, type, values, number, place));
                }
            }
        });
        say("checked");
    }

    private String difference(
        ClientCache<Object, Object> back, String key, String type, Object[] values, int number, String place
    ) {
        Object was = place.equals("elements") ? new Object[] {values[number], null} : values[number];
        try {
            if (place.equals("key"))
                return key.equals(clientOf(type).cache("BACK").get(values[number])) ? null : "no such key";
            Object is = back.get(key);
            if (!place.equals("value"))
                is = ((BinaryObject) is).field(place);
            if (place.equals("nested"))
                is = ((BinaryObject) is).field("inner");
            String found = json(described(is));
            if (json(described(was)).equals(found))
                return null;
            return json(described(ownReading(type, number, place))).equals(found) ? null : found;
        } catch (RuntimeException failure) {
            return failure.toString();
        }
    }

    /** What Java itself reads of a row of its own: an Object[] in place of a Color[]. */
    private Object ownReading(String type, int number, String place) {
        String cache = (place.equals("value") ? "PLAIN_" : "ROW_") + type;
        Object key = place.equals("value") && !keyless.contains(type) ? cases.get(type)[number] : number;
        Object row = clientOf(type).cache(cache).withKeepBinary().get(key);
        if (place.equals("value"))
            return row;
        Object is = ((BinaryObject) row).field(place);
        return place.equals("nested") ? ((BinaryObject) is).field("inner") : is;
    }

    private static Object described(Object value) {
        return described(value, new ArrayDeque<>());
    }

    private static List<Object> list(Object... items) {
        return new ArrayList<>(Arrays.asList(items));
    }

    private static Object described(Object value, Deque<Object> above) {
        if (value == null)
            return null;
        int up = 1;
        for (Object each : above) {
            if (each == value)
                return list("above", up);
            up++;
        }
        if (value instanceof BinaryObject)
            return unpacked((BinaryObject) value, above);
        above.push(value);
        try {
            return value.getClass().isArray() ? array(value, above) : plain(value, above);
        } finally {
            above.pop();
        }
    }

    private static Object unpacked(BinaryObject object, Deque<Object> above) {
        try {
            Object made = object.deserialize();
            if (!(made instanceof BinaryObject))
                return described(made, above);
        } catch (BinaryObjectException withoutClass) {
            // described by its fields
        }
        if (object.type().isEnum())
            return list("enum", object.type().typeName(), object.enumName(), object.enumOrdinal());
        above.push(object);
        Map<String, Object> fields = new TreeMap<>();
        for (String name : object.type().fieldNames())
            if (object.hasField(name))
                fields.put(name, described(object.field(name), above));
        above.pop();
        return list("object", object.type().typeName(), fields);
    }

    private static Object array(Object array, Deque<Object> above) {
        List<Object> items = new ArrayList<>();
        for (int at = 0; at < Array.getLength(array); at++) {
            Object item = described(Array.get(array, at), above);
            items.add(array.getClass().getComponentType().isPrimitive() ? ((List<?>) item).get(1) : item);
        }
        return list("array", array.getClass().getComponentType().getName(), items);
    }

    private static Object plain(Object value, Deque<Object> above) {
        String type = value.getClass().getSimpleName();
        if (value instanceof Float)
            return list("float", Integer.toHexString(Float.floatToRawIntBits((Float) value)));
        if (value instanceof Double)
            return list("double", Long.toHexString(Double.doubleToRawLongBits((Double) value)));
        if (value instanceof Character)
            return list("char", (int) (Character) value);
        if (value instanceof BigInteger)
            return list("java", value.toString());
        if (value instanceof BigDecimal)
            return list("decimal", ((BigDecimal) value).unscaledValue().toString(), ((BigDecimal) value).scale());
        if (value instanceof Number || value instanceof Boolean)
            return list(type.equals("Integer") ? "int" : type.toLowerCase(), value);
        if (value instanceof String)
            return list("text", value);
        if (value instanceof UUID)
            return list("uuid", value.toString());
        if (value instanceof Timestamp)
            return list("timestamp", ((Date) value).getTime(), ((Timestamp) value).getNanos() % 1_000_000);
        if (value instanceof Date)
            return list(value instanceof Time ? "time" : value instanceof java.sql.Date ? "sql date" : "date",
                ((Date) value).getTime());
        if (value instanceof Enum)
            return list("enum", value.getClass().getName(), value.toString(), ((Enum<?>) value).ordinal());
        if (value instanceof Class)
            return list("class", ((Class<?>) value).getName());
        if (value instanceof Collection)
            return list("collection", type, all((Collection<?>) value, above));
        if (value instanceof Map)
            return list("map", type, pairs((Map<?, ?>) value, above));
        if (value.getClass().getName().startsWith("java."))
            return list("java", value.toString());
        return list("object", value.getClass().getName(), fields(value, above));
    }

    private static List<Object> all(Collection<?> values, Deque<Object> above) {
        List<Object> told = new ArrayList<>();
        for (Object each : values)
            told.add(described(each, above));
        return told;
    }

    private static List<Object> pairs(Map<?, ?> map, Deque<Object> above) {
        List<Object> told = new ArrayList<>();
        map.forEach((key, value) -> told.add(list(described(key, above), described(value, above))));
        return told;
    }

    private static Map<String, Object> fields(Object object, Deque<Object> above) {
        Map<String, Object> told = new TreeMap<>();
        for (Class<?> of = object.getClass(); of != Object.class; of = of.getSuperclass()) {
            for (Field field : of.getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) || field.isSynthetic())
                    continue;
                try {
                    field.setAccessible(true);
                    told.put(field.getName(), described(field.get(object), above));
                } catch (IllegalAccessException failure) {
                    throw new IllegalStateException(failure);
                }
            }
        }
        return told;
    }

    private void say(Object... line) {
        out.println(json(Arrays.asList(line)));
    }

    private static String json(Object value) {
        if (value instanceof List) {
            List<String> items = new ArrayList<>();
            for (Object each : (List<?>) value)
                items.add(json(each));
            return "[" + String.join(",", items) + "]";
        }
        if (value instanceof Map) {
            List<String> items = new ArrayList<>();
            ((Map<?, ?>) value).forEach((key, each) -> items.add(json(key) + ":" + json(each)));
            return "{" + String.join(",", items) + "}";
        }
        return value instanceof String ? quoted((String) value) : String.valueOf(value);
    }

    private static String quoted(String text) {
        StringBuilder made = new StringBuilder("\"");
        for (char unit : text.toCharArray()) {
            if (unit == '"' || unit == '\\')
                made.append('\\').append(unit);
            else if (unit < ' ' || unit > '~')
                made.append(String.format("\\u%04x", (int) unit));
            else
                made.append(unit);
        }
        return made.append('"').toString();
    }

    public static void main(String[] arguments) throws IOException {
        FillTypes filling = new FillTypes(arguments[0]);
        filling.fill();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        while (orders.readLine() != null)
            filling.check();
        filling.compact.close();
        filling.full.close();
    }
}
