<?php
// phpredis.php sessions|rest: runs phpredis' own tests, one after the other, and writes
// how each ended: JSON to the file that RECORD names, as record.py does. NOT_RUN is a
// JSON array of names.
error_reporting(E_ALL & ~E_DEPRECATED);
define('PHPREDIS_TESTRUN', true);
// They look for each other beside the program that was called.
$_SERVER['PHP_SELF'] = getcwd() . '/TestRedis.php';
require 'TestSuite.php';
require 'RedisTest.php';

$notRun = json_decode(getenv('NOT_RUN'), true);
[$host, $port] = explode(':', getenv('REDIS_ADDR'));
$record = ['ended' => [], 'unrun' => [], 'failed' => []];
foreach ((new ReflectionClass('Redis_Test'))->getMethods(ReflectionMethod::IS_PUBLIC) as $method) {
    $name = $method->name;
    if (strncmp($name, 'test', 4) || !strncmp($name, 'testSession', 11) !== ($argv[1] === 'sessions')) {
        continue;
    }
    if (in_array($name, $notRun)) {
        $record['unrun'][] = $name;
        continue;
    }
    TestSuite::$errors = [];
    $how = 'passed';
    $words = '';
    try {
        $test = new Redis_Test($host, (int)$port, null);
        $test->setUp();
        $test->$name();
    } catch (TestSkippedException $skipped) {
        $how = 'skipped';
    } catch (Throwable $error) {
        $how = 'failed';
        $words = get_class($error) . ': ' . $error->getMessage();
    }
    if (TestSuite::$errors) {
        $how = 'failed';
        $words = trim(TestSuite::$errors[0]);
    }
    $record['ended'][$name] = $how;
    if ($how === 'failed') {
        $record['failed'][$name] = $words;
    }
}
file_put_contents(getenv('RECORD'), json_encode($record, JSON_INVALID_UTF8_SUBSTITUTE));
