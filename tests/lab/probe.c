/* probe: the only file of a "distroless" image. Static, no shell, no libc in the image. It plays a model server and is at the
 * same time a witness from inside the container: it says what mincore says there and what its own page faults were.
 *
 * probe COMMAND [ARGUMENT] [COMMAND [ARGUMENT]]...   carried out in order; one line a command on stdout
 *   wait PATH       until PATH exists (asked every 5 ms, at most 120 s)
 *   resident PATH   "resident PATH PAGES_RESIDENT PAGES"
 *   touch PATH      map PATH and read one byte of each page: "touch PATH MAJOR_FAULTS MINOR_FAULTS MICROSECONDS"
 *   say WORD        "say WORD"
 *   anon MIB        hold MIB mebibytes of anonymous memory, written: "anon MIB"
 *   sleep SECONDS   or until SIGTERM
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what, const char *path)
{
	printf("error %s %s: %s\n", what, path, strerror(errno));
	fflush(stdout);
	exit(1);
}

static long long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static void *map(const char *path, size_t *size)
{
	struct stat st;
	void *at;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st))
		die("open", path);
	*size = st.st_size;
	at = mmap(NULL, *size ? *size : 1, PROT_READ, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		die("mmap", path);
	close(fd);
	return at;
}

static void wait_for(const char *path)
{
	struct timespec step = { 0, 5000000 };
	long long end = now_us() + 120000000;

	while (access(path, F_OK)) {
		if (now_us() > end) {
			errno = ETIMEDOUT;
			die("wait", path);
		}
		nanosleep(&step, NULL);
	}
	printf("wait %s\n", path);
}

static void resident(const char *path)
{
	size_t size, pages, n = 0, page = sysconf(_SC_PAGESIZE);
	void *at = map(path, &size);
	unsigned char *seen;

	pages = (size + page - 1) / page;
	seen = malloc(pages + 1);
	if (size && mincore(at, size, seen))
		die("mincore", path);
	for (size_t i = 0; i < pages; i++)
		n += seen[i] & 1;
	printf("resident %s %zu %zu\n", path, n, pages);
	free(seen);
	munmap(at, size ? size : 1);
}

static void touch(const char *path)
{
	size_t size, page = sysconf(_SC_PAGESIZE);
	struct rusage before, after;
	long long start = now_us();
	volatile unsigned char *at = map(path, &size);
	unsigned sum = 0;

	getrusage(RUSAGE_SELF, &before);
	for (size_t i = 0; i < size; i += page)
		sum += at[i];
	getrusage(RUSAGE_SELF, &after);
	printf("touch %s %ld %ld %lld\n", path, after.ru_majflt - before.ru_majflt, after.ru_minflt - before.ru_minflt,
	       now_us() - start);
	(void)sum;
}

static void anon(const char *mib)
{
	size_t size = strtoul(mib, NULL, 10) << 20;
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("mmap", mib);
	memset(at, 1, size);
	printf("anon %s\n", mib);
}

static void stop(int sig)
{
	(void)sig;
	_exit(0);
}

int main(int argc, char **argv)
{
	signal(SIGTERM, stop);
	for (int i = 1; i + 1 < argc; i += 2) {
		const char *verb = argv[i], *arg = argv[i + 1];

		if (!strcmp(verb, "wait"))
			wait_for(arg);
		else if (!strcmp(verb, "resident"))
			resident(arg);
		else if (!strcmp(verb, "touch"))
			touch(arg);
		else if (!strcmp(verb, "say"))
			printf("say %s\n", arg);
		else if (!strcmp(verb, "anon"))
			anon(arg);
		else if (!strcmp(verb, "sleep")) {
			fflush(stdout);
			sleep(strtoul(arg, NULL, 10));
		} else {
			errno = EINVAL;
			die(verb, arg);
		}
		fflush(stdout);
	}
	return 0;
}
