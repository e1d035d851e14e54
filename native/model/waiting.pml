/* Sleeping and waking: does a rank that sleeps always wake when what it waits for has come?
 *
 * Every rank has a word that only grows, and a bell (native/src/waiting.hpp). Whoever waits says on its bell for whom,
 * looks once more, and sleeps on the bell's counter (a futex). Whoever sets its word looks at the others' bells, and rings
 * those that wait for it. Here nothing ends a sleep but the bell: the 50 ms of the real futex are a safety net, which
 * this model takes away, so that a lost wake-up is a deadlock that spin finds.
 *
 * RANKS   ranks 0 .. RANKS-1 meet ROUNDS times: set the own word, wait for everyone's
 * THREADS 2: rank 0 has two threads that wait for different ranks on the same bell
 * ABORT   one rank may break the group instead of setting its word; then everybody must end with an error
 * MISTAKE 1: no second look before the sleep   2: no fence: the bell is read before the word is seen by others
 *         3: sleeps whatever the counter says  4: one thread's getting up silences the bell of the other
 *         5: the one who breaks the group rings nobody
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef THREADS
#define THREADS 1
#endif
#ifndef MISTAKE
#define MISTAKE 0
#endif

#define AWAKE 0
#define ANY 255

byte word[RANKS];
byte rings[RANKS];      /* the futex: its value modulo 256 */
byte waits_for[RANKS];  /* AWAKE, ANY, or a rank + 1 */
byte sleepers[RANKS];
bool asleep[RANKS * THREADS];  /* inside the kernel */
bool broken;
byte ended;

/* One step, as the kernel does it: compare and sleep, or return at once. */
inline futex_wait(rank, slot, before) {
  atomic {
    if
    :: MISTAKE == 3 || rings[rank] == before -> asleep[slot] = true
    :: else -> skip
    fi
  }
  !asleep[slot];
}

inline wake(rank) {
  asleep[rank * THREADS] = false;
  asleep[rank * THREADS + THREADS - 1] = false
}

/* The real one is under the mutex of the rank's threads, therefore atomic among them; other ranks see each store. */
inline lie_down(rank, peer, before, alone) {
  atomic { sleepers[rank]++; alone = (sleepers[rank] == 1); before = rings[rank] }
  atomic { waits_for[rank] = (alone -> peer + 1 : ANY); alone = false }
}

inline get_up(rank, before) {
  atomic {
    sleepers[rank]--;
    before = 0;
    waits_for[rank] = (sleepers[rank] == 0 || MISTAKE == 4 -> AWAKE : waits_for[rank])
  }
}

#define waits_for_me(peer, rank) (peer != rank && (waits_for[peer] == rank + 1 || waits_for[peer] == ANY))

/* One after the other: each look at a bell is a step, and so is each ring. */
inline ring_those_that_wait_for(rank, peer) {
  do
  :: atomic { peer < RANKS && !waits_for_me(peer, rank) -> peer++ }
  :: atomic { peer < RANKS && waits_for_me(peer, rank) -> rings[peer]++ }
    atomic { wake(peer); peer++ }
  :: peer == RANKS -> break
  od;
  peer = 0
}

inline ring_everybody(rank, peer) {
  do
  :: atomic { peer == rank -> peer++ }
  :: atomic { peer < RANKS && peer != rank -> rings[peer]++ }
    atomic { wake(peer); peer++ }
  :: peer == RANKS -> break
  od;
  peer = 0
}

inline set_word(rank, value, peer) {
#if MISTAKE == 2
  /* The processor reads the bells while the store waits in its buffer. */
  ring_those_that_wait_for(rank, peer);
  word[rank] = value
#else
  word[rank] = value;
  ring_those_that_wait_for(rank, peer)
#endif
}

inline break_group(rank, peer) {
  broken = true;
#if MISTAKE != 5
  ring_everybody(rank, peer)
#endif
}

bool mutex;  /* of the threads of rank 0 */

inline lock(rank) {
  if
  :: rank == 0 && THREADS == 2 -> atomic { !mutex -> mutex = true }
  :: else -> skip
  fi
}

inline unlock(rank) {
  if
  :: rank == 0 && THREADS == 2 -> mutex = false
  :: else -> skip
  fi
}

/* Until `peer` has reached `value` or the group is broken. */
inline wait_for(rank, slot, peer, value, before, alone) {
  do
  :: word[peer] >= value || broken -> break
  :: else ->
    lock(rank);
    lie_down(rank, peer, before, alone);
    unlock(rank);
    if
    :: MISTAKE != 1 && (word[peer] >= value || broken) -> skip
    :: else -> futex_wait(rank, slot, before)
    fi;
    lock(rank);
    get_up(rank, before);
    unlock(rank)
  od
}

proctype rank_process(byte me) {
  byte round = 1, other, before;
  bool alone;
  do
  :: round <= ROUNDS && !broken ->
#ifdef ABORT
    if
    :: set_word(me, round, other)
    :: !broken -> break_group(me, other); break
    fi;
#else
    set_word(me, round, other);
#endif
    do
    :: other == me -> other++
    :: other < RANKS && other != me && !broken ->
      wait_for(me, me * THREADS, other, round, before, alone);
      other++
    :: other == RANKS || broken -> break
    od;
    atomic { round++; other = 0 }
  :: else -> break
  od;
  ended++
}

/* A thread of rank 0 that waits for one other rank; its sibling waits for another one. */
proctype waiting_thread(byte slot; byte peer) {
  byte round = 1, before;
  bool alone;
  do
  :: round <= ROUNDS ->
    wait_for(0, slot, peer, round, before, alone);
    round++
  :: else -> break
  od;
  ended++
}

proctype setting_rank(byte me) {
  byte round = 1, other;
  do
  :: round <= ROUNDS ->
    set_word(me, round, other);
    round++
  :: else -> break
  od;
  ended++
}

init {
  byte i;
  atomic {
    if
    :: THREADS == 2 ->
      run waiting_thread(0, 1);
      run waiting_thread(1, 2);
      run setting_rank(1);
      run setting_rank(2)
    :: else ->
      i = 0;
      do
      :: i < RANKS -> run rank_process(i); i++
      :: else -> break
      od
    fi
  }
  ended == (THREADS == 2 -> 4 : RANKS)  /* a deadlock here is a rank that sleeps forever */
}
