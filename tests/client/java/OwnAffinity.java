import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.ignite.Ignite;
import org.apache.ignite.IgniteDataStreamer;
import org.apache.ignite.Ignition;
import org.apache.ignite.cache.affinity.AffinityFunction;
import org.apache.ignite.cache.affinity.AffinityFunctionContext;
import org.apache.ignite.cache.affinity.AffinityKeyMapper;
import org.apache.ignite.cache.QueryEntity;
import org.apache.ignite.cluster.ClusterNode;
import org.apache.ignite.configuration.CacheConfiguration;
import org.apache.ignite.configuration.ClientConnectorConfiguration;
import org.apache.ignite.configuration.DataRegionConfiguration;
import org.apache.ignite.configuration.DataStorageConfiguration;
import org.apache.ignite.configuration.IgniteConfiguration;
import org.apache.ignite.lang.IgnitePredicate;
import org.apache.ignite.logger.NullLogger;
import org.apache.ignite.spi.discovery.tcp.TcpDiscoverySpi;
import org.apache.ignite.spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder;

/**
 * Two nodes with caches whose rows lie elsewhere than Ignite puts them by default.
 *
 * Arguments: two ports for clients, two for discovery, a work directory. On the standard output a line "filled"; after a
 * line "stop" on the standard input the second node goes, and "stopped" is said. It ends where its input ends.
 *
 * Of 3,000 rows number -> Row: FUNCTION is dealt by a function of its own to 12 partitions, MAPPER by the last digit of
 * keys, FILTERED lies on the second node alone.
 */
public final class OwnAffinity {
    static final int ROWS = 3000;

    static class Row {
        long number;
        double half;

        Row(long number) {
            this.number = number;
            this.half = number / 2.0;
        }
    }

    /** Key k belongs to partition k / 1000 of 12; these go to nodes by turns, in the order of their names. */
    static class ByThousands implements AffinityFunction {
        @Override public void reset() { }

        @Override public int partitions() {
            return 12;
        }

        @Override public int partition(Object key) {
            return (int)(((Number)key).longValue() / 1000 % 12);
        }

        @Override public List<List<ClusterNode>> assignPartitions(AffinityFunctionContext context) {
            List<ClusterNode> nodes = new ArrayList<>(context.currentTopologySnapshot());
            nodes.sort((one, other) -> one.consistentId().toString().compareTo(other.consistentId().toString()));
            List<List<ClusterNode>> assigned = new ArrayList<>();
            for (int partition = 0; partition < 12; partition++)
                assigned.add(List.of(nodes.get(partition % nodes.size())));
            return assigned;
        }

        @Override public void removeNode(UUID node) { }
    }

    static class ByLastDigit implements AffinityKeyMapper {
        @Override public Object affinityKey(Object key) {
            return ((Number)key).longValue() % 10;
        }

        @Override public void reset() { }
    }

    static class OnSecond implements IgnitePredicate<ClusterNode> {
        @Override public boolean apply(ClusterNode node) {
            return node.consistentId().equals("node-1");
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        List<Ignite> nodes = new ArrayList<>();
        for (int index = 0; index < 2; index++)
            nodes.add(Ignition.start(configuration(index, arguments)));
        fill(nodes.get(0), new CacheConfiguration<Long, Row>("FUNCTION").setAffinity(new ByThousands()));
        fill(nodes.get(0), new CacheConfiguration<Long, Row>("MAPPER").setAffinityMapper(new ByLastDigit()));
        QueryEntity table = new QueryEntity(Long.class.getName(), Row.class.getName())
            .setTableName("FILTERED")
            .addQueryField("half", Double.class.getName(), null);
        fill(nodes.get(0), new CacheConfiguration<Long, Row>("FILTERED")
            .setNodeFilter(new OnSecond())
            .setQueryEntities(List.of(table)));
        out.println("filled");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            nodes.get(1).close();
            out.println("stopped");
        }
        System.exit(0);
    }

    private static IgniteConfiguration configuration(int index, String[] arguments) {
        List<String> addresses = List.of("127.0.0.1:" + arguments[2], "127.0.0.1:" + arguments[3]);
        DataRegionConfiguration region = new DataRegionConfiguration().setMaxSize(128 << 20).setInitialSize(32 << 20);
        return new IgniteConfiguration()
            .setIgniteInstanceName("node-" + index)
            .setConsistentId("node-" + index)
            .setLocalHost("127.0.0.1")
            .setWorkDirectory(arguments[4])
            .setGridLogger(new NullLogger())
            .setMetricsLogFrequency(0)
            .setConnectorConfiguration(null)
            .setDataStorageConfiguration(new DataStorageConfiguration().setDefaultDataRegionConfiguration(region))
            .setDiscoverySpi(new TcpDiscoverySpi()
                .setLocalPort(Integer.parseInt(arguments[2 + index]))
                .setLocalPortRange(0)
                .setIpFinder(new TcpDiscoveryVmIpFinder().setAddresses(addresses)))
            .setClientConnectorConfiguration(new ClientConnectorConfiguration()
                .setHost("127.0.0.1")
                .setPort(Integer.parseInt(arguments[index]))
                .setPortRange(0));
    }

    private static void fill(Ignite node, CacheConfiguration<Long, Row> configuration) {
        node.createCache(configuration);
        try (IgniteDataStreamer<Long, Row> rows = node.dataStreamer(configuration.getName())) {
            for (long key = 0; key < ROWS; key++)
                rows.addData(Map.entry(key, new Row(key)));
        }
    }
}
