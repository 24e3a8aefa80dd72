/* nri-warmup-exec: runs an operator's warm-up program as a startContainer hook, inside the container, under the container's own
 * user, capabilities and seccomp filter, before its entrypoint.
 *
 *   nri-warmup-exec [--timeout-ms N] [--log SOCKET] [--cpus LIST] [--nodes LIST] -- PROGRAM [ARGUMENT]...
 *
 * Comes into the container on a read-only bind mount, so it is static and needs nothing of the image. A startContainer hook that
 * fails kills the container: whatever happens here, the status is 0. The program is bound to CPUs and NUMA nodes for its time
 * only, for it is a child; it and all it has started in its process group are killed when its time is over. What it prints goes,
 * line by line, to the daemon's socket: "o TEXT", at the end "e STATUS MILLISECONDS", STATUS being exit=N, signal=N, timeout or
 * error=N (errno). No daemon, no log: the program runs all the same.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_IDS 1024
#define MPOL_BIND 2
#define LAST_WORD_MS 200
#define MAX_LOG_BYTES 65536

static const char *cpus, *nodes, *log_path;
static long timeout_ms = 10000;
static int log_fd = -1;

static long long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* A line for the daemon. One that does not read must not hold the container: what does not fit is lost. */
static void tell(char kind, const char *text, size_t length)
{
	char line[1024 + 4];

	if (log_fd < 0)
		return;
	if (length > 1024)
		length = 1024;
	line[0] = kind;
	line[1] = ' ';
	memcpy(line + 2, text, length);
	line[length + 2] = '\n';
	if (send(log_fd, line, length + 3, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN) {
		close(log_fd);
		log_fd = -1;
	}
}

static void tell_text(char kind, const char *text)
{
	tell(kind, text, strlen(text));
}

/* The last line. The daemon tells the container by our pid, so we stay until it has taken the line and closed, a moment at most. */
static void tell_end(const char *text)
{
	struct pollfd closed = { .events = POLLIN };

	tell_text('e', text);
	closed.fd = log_fd;
	if (log_fd >= 0)
		poll(&closed, 1, LAST_WORD_MS);
}

static void open_log(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	if (!log_path || strlen(log_path) >= sizeof address.sun_path)
		return;
	strcpy(address.sun_path, log_path);
	log_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (log_fd >= 0 && connect(log_fd, (struct sockaddr *)&address, sizeof address)) {
		close(log_fd);
		log_fd = -1;
	}
}

/* "0-3,8" into a bit mask. Returns 0 for what is no such list. */
static int parse_list(const char *text, unsigned long *mask)
{
	while (*text) {
		char *end;
		unsigned long first = strtoul(text, &end, 10), last = first;

		if (end == text)
			return 0;
		if (*end == '-') {
			text = end + 1;
			last = strtoul(text, &end, 10);
			if (end == text)
				return 0;
		}
		if (last >= MAX_IDS || first > last || (*end && *end != ','))
			return 0;
		for (; first <= last; first++)
			mask[first / (8 * sizeof(long))] |= 1UL << first % (8 * sizeof(long));
		text = *end ? end + 1 : end;
	}
	return 1;
}

/* In the child. A binding that is refused (a cpuset without those CPUs, a seccomp filter) is said and no more. */
static void bind_to(void)
{
	unsigned long mask[MAX_IDS / (8 * sizeof(long))];

	memset(mask, 0, sizeof mask);
	if (cpus && (!parse_list(cpus, mask) || syscall(SYS_sched_setaffinity, 0, sizeof mask, mask) < 0))
		tell_text('o', "nri-warmup-exec: not bound to its CPUs");
	memset(mask, 0, sizeof mask);
	if (nodes && (!parse_list(nodes, mask) || syscall(SYS_set_mempolicy, MPOL_BIND, mask, MAX_IDS) < 0))
		tell_text('o', "nri-warmup-exec: not bound to its NUMA nodes");
}

static void run(char **argv, int out)
{
	int null = open("/dev/null", O_RDONLY);

	setpgid(0, 0);
	bind_to();
	if (null >= 0)
		dup2(null, 0);
	dup2(out, 1);
	dup2(out, 2);
	execv(argv[0], argv);
	dprintf(out, "nri-warmup-exec: %s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

/* Relay whole lines. A program that has closed its output, or told all that is wanted of it, is only waited for. */
static int relay(int in, size_t *sent)
{
	static char buffer[1024];
	static size_t held;
	ssize_t got = read(in, buffer + held, sizeof buffer - held);
	char *start = buffer, *end;

	if (got <= 0) {
		if (held)
			tell('o', buffer, held);
		held = 0;
		return 0;
	}
	held += got;
	*sent += got;
	while (held && ((end = memchr(start, '\n', held)) || (held == sizeof buffer && start == buffer))) {
		size_t length = end ? (size_t)(end - start) : held;

		if (*sent <= MAX_LOG_BYTES)
			tell('o', start, length);
		held -= end ? length + 1 : length;
		start += end ? length + 1 : length;
	}
	memmove(buffer, start, held);
	return 1;
}

static void supervise(pid_t child, int out, long long began)
{
	long long left;
	size_t sent = 0;
	int status = 0, open_out = 1, timed_out = 0;
	pid_t ended = 0;
	char text[64];

	while (!(ended = waitpid(child, &status, WNOHANG)) && (left = began + timeout_ms - now_ms()) > 0) {
		struct pollfd poll_out = { .fd = open_out ? out : -1, .events = POLLIN };

		if (poll(&poll_out, 1, left < 10 ? (int)left : 10) > 0 && !relay(out, &sent))
			open_out = 0;
	}
	timed_out = !ended;
	kill(-child, SIGKILL);
	if (timed_out)
		waitpid(child, &status, 0);
	/* What it had printed before it ended; descendants that hold the pipe are dead or have left the group. */
	fcntl(out, F_SETFL, O_NONBLOCK);
	while (open_out && relay(out, &sent))
		;
	if (timed_out)
		snprintf(text, sizeof text, "timeout %lld", now_ms() - began);
	else if (WIFSIGNALED(status))
		snprintf(text, sizeof text, "signal=%d %lld", WTERMSIG(status), now_ms() - began);
	else
		snprintf(text, sizeof text, "exit=%d %lld", WEXITSTATUS(status), now_ms() - began);
	tell_end(text);
}

static void drain_state(void)
{
	char buffer[4096];

	while (read(0, buffer, sizeof buffer) > 0)
		;
}

static char **parse(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--"))
			return i + 1 < argc ? argv + i + 1 : NULL;
		if (i + 1 >= argc)
			break;
		if (!strcmp(argv[i], "--timeout-ms"))
			timeout_ms = atol(argv[++i]);
		else if (!strcmp(argv[i], "--log"))
			log_path = argv[++i];
		else if (!strcmp(argv[i], "--cpus"))
			cpus = argv[++i];
		else if (!strcmp(argv[i], "--nodes"))
			nodes = argv[++i];
	}
	return NULL;
}

int main(int argc, char **argv)
{
	long long began = now_ms();
	char **program = parse(argc, argv), text[64];
	int out[2];
	pid_t child;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, SIG_DFL);
	drain_state();
	if (!program)
		return 0;
	open_log();
	if (pipe2(out, O_CLOEXEC)) {
		snprintf(text, sizeof text, "error=%d 0", errno);
		tell_end(text);
		return 0;
	}
	child = fork();
	if (child == 0) {
		signal(SIGPIPE, SIG_DFL);
		run(program, out[1]);
	}
	if (child < 0) {
		snprintf(text, sizeof text, "error=%d 0", errno);
		tell_end(text);
		return 0;
	}
	setpgid(child, child);
	close(out[1]);
	supervise(child, out[0], began);
	return 0;
}
