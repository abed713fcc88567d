import java.util.Date;
import java.util.TreeSet;
import java.util.Set;
import javax.cache.Cache;
import org.apache.ignite.Ignition;
import org.apache.ignite.cache.QueryEntity;
import org.apache.ignite.cache.affinity.AffinityKeyMapped;
import org.apache.ignite.cache.query.ScanQuery;
import org.apache.ignite.cache.query.annotations.QuerySqlField;
import org.apache.ignite.client.ClientCache;
import org.apache.ignite.client.ClientCacheConfiguration;
import org.apache.ignite.client.IgniteClient;
import org.apache.ignite.configuration.ClientConfiguration;

/**
 * A cache whose table is made of annotated classes, with one row; after a line on the standard input all rows, as Java
 * reads them.
 *
 * Arguments: HOST:PORT of a node, the cache's name.
 */
public final class AnnotatedRows {
    static class PersonKey {
        @QuerySqlField
        int id;

        @AffinityKeyMapped
        @QuerySqlField
        String country;

        PersonKey(String country, int id) {
            this.country = country;
            this.id = id;
        }
    }

    static class Person {
        @QuerySqlField
        String name;

        @QuerySqlField(name = "HOW_OLD")
        short age;

        @QuerySqlField
        Date born;

        @QuerySqlField
        double score;

        Person(String name, int age, Date born, double score) {
            this.name = name;
            this.age = (short)age;
            this.born = born;
            this.score = score;
        }
    }

    public static void main(String[] args) throws Exception {
        try (IgniteClient client = Ignition.startClient(new ClientConfiguration().setAddresses(args[0]))) {
            ClientCache<PersonKey, Person> cache = client.getOrCreateCache(new ClientCacheConfiguration()
                .setName(args[1])
                .setQueryEntities(new QueryEntity(PersonKey.class, Person.class)));
            cache.put(new PersonKey("AAA", 1), new Person("first", 4, new Date(0), 0.5));
            System.out.println("filled");
            System.in.read();
            Set<String> lines = new TreeSet<>();
            for (Cache.Entry<PersonKey, Person> row : cache.query(new ScanQuery<PersonKey, Person>()).getAll()) {
                Person person = cache.get(row.getKey());
                lines.add(row.getKey().country + " " + row.getKey().id + " " + person.name + " " + person.age + " "
                    + person.born.getTime() + " " + person.score);
            }
            lines.forEach(System.out::println);
        }
    }
}
