# dalli speaks the binary protocol, and meta from its third version on.
require "dalli"
require "minitest/autorun"
require "securerandom"

module Operations
  def setup
    Dalli.logger.level = Logger::ERROR
    @client = Dalli::Client.new(
      ENV.fetch("MEMCACHED_ADDR"),
      protocol: protocol, socket_timeout: 5, socket_max_failures: 0, value_max_bytes: 1024 * 1024
    )
  end

  def teardown
    @client.close
  end

  # Versions of the client disagree on the word for it.
  def refute_stored(answer)
    assert_includes [false, nil, 0], answer
  end

  def fresh
    "key-#{SecureRandom.hex(12)}"
  end

  def test_set_get_delete
    key = fresh
    assert_nil @client.get(key)
    assert @client.set(key, "value ☃")
    assert_equal "value ☃", @client.get(key)
    assert @client.delete(key)
    refute @client.delete(key)
    assert_nil @client.get(key)
  end

  def test_add_replace
    key = fresh
    refute_stored @client.replace(key, 0)
    assert @client.add(key, 1)
    refute_stored @client.add(key, 2)
    assert @client.replace(key, 3)
    assert_equal 3, @client.get(key)
  end

  def test_append_prepend
    key = fresh
    @client.set(key, "middle", 0, raw: true)
    assert @client.append(key, ">")
    assert @client.prepend(key, "<")
    assert_equal "<middle>", @client.get(key, raw: true)
    refute_stored @client.append(fresh, "x")
  end

  def test_cas
    key = fresh
    assert_nil @client.cas(key) { |value| value }
    @client.set(key, [1])
    assert @client.cas(key) { |value| value + [2] }
    assert_equal [1, 2], @client.get(key)
    refute(@client.cas(key) { |value| @client.set(key, "between"); value })
    assert_equal "between", @client.get(key)
    value, unique = @client.get_cas(key)
    assert_equal "between", value
    assert @client.set_cas(key, "after", unique)
    refute @client.set_cas(key, "late", unique)
    _, unique = @client.get_cas(key)
    assert @client.delete_cas(key, unique)
    assert_nil @client.get(key)
  end

  def test_numbers
    key = fresh
    assert_nil @client.incr(key)
    assert_equal 7, @client.incr(key, 5, 0, 7)
    assert_equal 12, @client.incr(key, 5)
    assert_equal 2, @client.decr(key, 10)
    assert_equal 0, @client.decr(key, 10)
    @client.set(key, (2**64 - 1).to_s, 0, raw: true)
    assert_equal 1, @client.incr(key, 2)
  end

  def test_touch_gat_and_expiry
    short, touched, got = fresh, fresh, fresh
    [short, touched, got].each { |key| @client.set(key, "value", 1) }
    assert @client.touch(touched, 100)
    assert_equal "value", @client.gat(got, 100)
    assert_nil @client.gat(fresh, 100)
    sleep 1.5
    assert_nil @client.get(short)
    assert_equal "value", @client.get(touched)
    assert_equal "value", @client.get(got)
  end

  def test_many
    values = (0...250).to_h { |number| [fresh, number] }
    @client.multi { values.each { |key, value| @client.set(key, value) } }
    assert_equal values, @client.get_multi(*values.keys, fresh)
    assert_equal values, @client.get_multi_cas(*values.keys).transform_values(&:first)
    @client.multi { values.each_key { |key| @client.delete(key) } }
    assert_empty @client.get_multi(*values.keys)
  end

  def test_fetch_and_types
    key = fresh
    assert_equal({ a: [1, nil, 2.5] }, @client.fetch(key) { { a: [1, nil, 2.5] } })
    assert_equal({ a: [1, nil, 2.5] }, @client.fetch(key) { flunk "it is there" })
  end

  def test_large_and_binary_values
    value = Random.new(1).bytes(1_000_000)
    key = fresh
    assert @client.set(key, value, 0, raw: true)
    assert_equal value, @client.get(key, raw: true)
    compressed = "a" * 3_000_000
    assert @client.set(key, compressed, 0, compress: true)
    assert_equal compressed, @client.get(key)
  end

  def test_version_stats_flush
    assert_match(/\A\d+\.\d+/, @client.version.values.first)
    assert_operator @client.stats.values.first.fetch("limit_maxbytes").to_i, :>, 0
    key = fresh
    @client.set(key, "value")
    @client.flush
    assert_nil @client.get(key)
    @client.set(key, "later")
    assert_equal "later", @client.get(key)
  end
end

class Binary < Minitest::Test
  include Operations

  def protocol = :binary
end

class Meta < Minitest::Test
  include Operations

  def protocol = :meta

  # Keys that are no plain text go as base64.
  def test_unicode_keys
    key = "ключ ☃ #{fresh}"
    assert @client.set(key, "value")
    assert_equal "value", @client.get(key)
    assert_equal({ key.b => "value" }, @client.get_multi(key).transform_keys(&:b))
    assert @client.delete(key)
  end
end
