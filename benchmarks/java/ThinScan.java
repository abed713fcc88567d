import java.lang.management.ManagementFactory;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import javax.cache.Cache;
import org.apache.ignite.Ignition;
import org.apache.ignite.binary.BinaryObject;
import org.apache.ignite.cache.query.QueryCursor;
import org.apache.ignite.cache.query.ScanQuery;
import org.apache.ignite.client.ClientCache;
import org.apache.ignite.client.IgniteClient;
import org.apache.ignite.configuration.ClientConfiguration;

/**
 * Variants java_1 and java_3: Ignite's own thin client for Java, at its best page size.
 *
 * Arguments: cache, rows, rows' fields ("-": the value is a byte[]), page sizes, seconds of a trial, then
 * host:port=partition,partition,... for each connection. One connection reads the whole cache with one query; of
 * several, each reads the partitions of its own node, with one local query or partition by partition, whichever
 * is faster. Answers as benchmarks/process.py says.
 */
public final class ThinScan {
    private final String[] fields;
    private final List<IgniteClient> clients = new ArrayList<>();
    private final List<ClientCache<Object, Object>> caches = new ArrayList<>();
    private final List<int[]> partitions = new ArrayList<>();
    private final ExecutorService threads;
    private volatile long sink;

    private ThinScan(String cache, String fields, List<String> connections) {
        this.fields = fields.equals("-") ? new String[0] : fields.split(",");
        for (String connection : connections) {
            String[] parts = connection.split("=");
            IgniteClient client = Ignition.startClient(new ClientConfiguration()
                .setAddresses(parts[0])
                .setClusterDiscoveryEnabled(false)
                .setPartitionAwarenessEnabled(false));
            clients.add(client);
            caches.add(client.cache(cache).withKeepBinary());
            List<Integer> numbers = new ArrayList<>();
            for (String number : parts[1].split(","))
                numbers.add(Integer.parseInt(number));
            partitions.add(numbers.stream().mapToInt(Integer::intValue).toArray());
        }
        threads = Executors.newFixedThreadPool(clients.size());
    }

    /** Reads all entries of a query and touches their data; gives their number. */
    private long read(ClientCache<Object, Object> cache, ScanQuery<Object, Object> query) {
        long rows = 0, sum = 0;
        try (QueryCursor<Cache.Entry<Object, Object>> cursor = cache.query(query)) {
            for (Cache.Entry<Object, Object> entry : cursor) {
                sum += ((Number)entry.getKey()).longValue();
                Object value = entry.getValue();
                if (fields.length == 0)
                    sum += touch(value);
                for (String field : fields)
                    sum += touch(((BinaryObject)value).<Object>field(field));
                rows++;
            }
        }
        sink += sum;
        return rows;
    }

    private static long touch(Object value) {
        if (value instanceof byte[]) {
            byte[] bytes = (byte[])value;
            return bytes[0] + bytes[bytes.length - 1];
        }
        return ((Number)value).longValue();
    }

    private long readOwner(int owner, int pageRows, boolean byPartition) {
        ClientCache<Object, Object> cache = caches.get(owner);
        if (!byPartition)
            return read(cache, new ScanQuery<>().setPageSize(pageRows).setLocal(clients.size() > 1));
        long rows = 0;
        for (int partition : partitions.get(owner))
            rows += read(cache, new ScanQuery<>().setPartition(partition).setPageSize(pageRows));
        return rows;
    }

    private long pass(int pageRows, boolean byPartition) throws Exception {
        List<Callable<Long>> work = new ArrayList<>();
        for (int owner = 0; owner < clients.size(); owner++) {
            int number = owner;
            work.add(() -> readOwner(number, pageRows, byPartition));
        }
        long rows = 0;
        for (Future<Long> part : threads.invokeAll(work))
            rows += part.get();
        return rows;
    }

    /** Repeats passes; gives rows, seconds, processor seconds. */
    private double[] repeat(double seconds, long expected, int pageRows, boolean byPartition) throws Exception {
        long began = System.nanoTime(), cpu = cpuNanos(), rows = 0;
        do {
            long found = pass(pageRows, byPartition);
            if (found != expected)
                throw new IllegalStateException("a pass gave " + found + " rows, and there are " + expected);
            rows += found;
        } while (System.nanoTime() - began < seconds * 1e9);
        return new double[] {rows, (System.nanoTime() - began) / 1e9, (cpuNanos() - cpu) / 1e9};
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }

    private static double peakRssMb() throws IOException {
        Path status = Path.of("/proc/self/status");
        if (Files.exists(status))
            for (String line : Files.readAllLines(status))
                if (line.startsWith("VmHWM:"))
                    return Long.parseLong(line.replaceAll("\\D", "")) * 1024 / 1e6;
        return 0;
    }

    public static void main(String[] args) throws Exception {
        long expected = Long.parseLong(args[1]);
        double trialSeconds = Double.parseDouble(args[4]);
        ThinScan scan = new ThinScan(args[0], args[2], List.of(args).subList(5, args.length));
        int bestPage = 0;
        boolean bestByPartition = false;
        double best = 0;
        boolean isWarm = false;
        for (String page : args[3].split(","))
            for (boolean byPartition : scan.clients.size() > 1 ? new boolean[] {false, true} : new boolean[] {false}) {
                int pageRows = Integer.parseInt(page);
                if (!isWarm)  // Until the compiler of the JVM has seen the code often enough.
                    scan.repeat(3 * trialSeconds, expected, pageRows, byPartition);
                isWarm = true;
                double[] took = scan.repeat(trialSeconds, expected, pageRows, byPartition);
                if (took[0] / took[1] > best) {
                    best = took[0] / took[1];
                    bestPage = pageRows;
                    bestByPartition = byPartition;
                }
            }
        System.out.println("{\"page_rows\": " + bestPage + ", \"by_partition\": " + bestByPartition + "}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            double[] took = scan.repeat(Double.parseDouble(line), expected, bestPage, bestByPartition);
            System.out.println(String.format(Locale.ROOT,
                "{\"rows\": %d, \"seconds\": %.6f, \"cpu_s\": %.6f, \"peak_rss_mb\": %.1f}",
                (long)took[0], took[1], took[2], peakRssMb()));
        }
        scan.threads.shutdown();
        for (IgniteClient client : scan.clients)
            client.close();
    }
}
