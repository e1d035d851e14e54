/* Operations of a group: rows, windows, staging, and what happens when ranks disagree, die or give up.
 *
 * Every rank has three words that only grow: arrived, pieces, worked (docs/design/shared-memory.md). A rank is two
 * processes here: `user` begins operations (up to DEPTH at once) and waits for them; `task` works through them in order, as
 * the coroutines of native/src/collectives.cpp do. Data is not modelled, only whose it is: a row, a buffer, a tensor knows
 * the operation or piece it holds, and every reader asserts that it holds what the reader came for. A wait is a guard;
 * that guards are noticed in time is the subject of waiting.pml.
 *
 * The words only grow and every process makes finitely many steps, so "no deadlock" means: everybody comes to an end.
 *
 * RANKS, OPERATIONS, DEPTH   their numbers
 * ROWS     rows of the ring (16 in truth)
 * BUFFERS  staging buffers of a rank
 * PIECES   pieces of an operation that goes through staging
 * KINDS    which kinds may be chosen for an operation, as bits 1 << kind; all ranks choose the same
 * DIFFER   at one operation each rank may have another description
 * DEATH    a rank may die at any point
 * GIVE_UP  a rank may give up at any point (a deadline, Ctrl-C), and goes on to change its tensors
 * OVERLAP  on each rank an operation may use memory that an earlier one uses there, another one than on the other ranks
 *
 * MISTAKE  1: a row is written again without waiting       2: ... when the others have worked, without asking oneself
 *          3: an operation in windows ends before all have worked   4: a sum is read before its second step
 *          5: an operation in windows ends without a look at `broken`
 *          6: only the next rank's description is compared  7: nobody looks whether a peer is dead
 *          8: an operation is published while an earlier one uses its memory
 *          9: ... when this rank has worked the earlier one, which is not yet its end
 *          10: two blocks change hands, not four
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef OPERATIONS
#define OPERATIONS 3
#endif
#ifndef DEPTH
#define DEPTH 2
#endif
#ifndef ROWS
#define ROWS 2
#endif
#ifndef BUFFERS
#define BUFFERS 4
#endif
#ifndef PIECES
#define PIECES 2
#endif
#ifndef KINDS
#define KINDS 31
#endif
#ifndef MISTAKE
#define MISTAKE 0
#endif

#define TINY 0   /* the numbers travel in the rows */
#define ZERO 1   /* in windows: each rank adds up one slice and writes it to everybody */
#define SUM 2    /* staged, in two steps for each piece: values, then sums */
#define WHOLE 3  /* staged, one piece, everybody adds up everything */
#define SHARE 4  /* staged, in one step for each piece, one piece ahead */
#define SWAP 5   /* the same between two ranks; a rank fills the block that it read two pieces before */

byte kind[OPERATIONS + 1];
byte variant[RANKS];  /* what a rank's description says at operation `differing` */
byte differing;       /* 0: nowhere */

byte after[RANKS * (OPERATIONS + 1)];  /* the earlier operation that uses the same memory on this rank; 0: none */

byte arrived[RANKS], pieces[RANKS], worked[RANKS];
byte row[RANKS * ROWS];          /* number of the operation * 2 + variant */
byte values[RANKS * BUFFERS];    /* the piece whose values a buffer holds */
byte sums[RANKS * BUFFERS];      /* the piece of whose sum it holds this rank's slice */
short swapped[4];                /* the piece and the rank whose values a block that changes hands holds */
short slices[OPERATIONS + 1];    /* in windows: bit reader * RANKS + writer */

byte returned[RANKS];  /* the last operation that ended well for the user, who has changed his tensors then */
bool broken, failed[RANKS], dead[RANKS];
bool tainted[RANKS * (OPERATIONS + 1)];  /* the result comes from a tensor whose owner had given up */
byte num_dead, num_given_up;

#if RANKS == 2
#define reached(word, target) (word[0] >= target && word[1] >= target)
#define dead_behind(word, target) ((dead[0] && word[0] < target) || (dead[1] && word[1] < target))
#else
#define reached(word, target) (word[0] >= target && word[1] >= target && word[2] >= target)
#define dead_behind(word, target) \
  ((dead[0] && word[0] < target) || (dead[1] && word[1] < target) || (dead[2] && word[2] < target))
#endif
#define reached_by_others(word, target, me) \
  ((me == 0 || word[0] >= target) && (me == 1 || word[1] >= target) && (RANKS == 2 || me == 2 || word[RANKS - 1] >= target))
#define is_over(me) (failed[me] || dead[me])
#define buffer(rank, piece) (rank * BUFFERS + (piece) % BUFFERS)
#define all_agree (variant[0] == variant[1] && variant[1] == variant[RANKS - 1])
#define description(me, number) (number * 2 + (number == differing -> variant[me] : 0))

/* Nobody reads or writes a rank's tensors of an operation any more: in windows all others have read its tensors and
 * written their slices; everywhere else only the rank itself does, before it has worked. */
#define window_of(me) (((1 << RANKS) - 1) << (me * RANKS))
#define is_at_rest(me, number) \
  (number == 0 || (worked[me] >= number && (kind[number] != ZERO || (slices[number] & window_of(me)) == window_of(me))))

/* A step of a rank that is still at it. */
#define STEP(me, action) atomic { if :: is_over(me) -> goto over :: else -> action fi }

/* Wait for everybody; a dead peer who is behind breaks the group. */
#define AWAIT(me, word, target) \
  atomic { \
    if \
    :: is_over(me) -> goto over \
    :: !is_over(me) && reached(word, target) \
    :: !is_over(me) && broken -> failed[me] = true; goto over \
    :: !is_over(me) && MISTAKE != 7 && dead_behind(word, target) -> broken = true; failed[me] = true; goto over \
    fi \
  }

#define FOR_EACH_PEER(peer, action) \
  peer = 0; do :: peer < RANKS -> action; peer++ :: peer == RANKS -> peer = 0; break od

inline look_at_row(me, number, peer) {
  assert(row[peer * ROWS + number % ROWS] / 2 == number);  /* it has not been written again */
  if
  :: row[peer * ROWS + number % ROWS] != row[me * ROWS + number % ROWS] && (MISTAKE != 6 || peer == (me + 1) % RANKS) ->
    broken = true;
    failed[me] = true;
    goto over
  :: else -> skip
  fi
}

inline read_payload(number, peer) { assert(row[peer * ROWS + number % ROWS] / 2 == number) }

inline read_and_write_window(me, number, peer) {
  assert(failed[peer] || returned[peer] < number);  /* its user has not changed the tensors */
  assert(is_at_rest(peer, after[peer * (OPERATIONS + 1) + number]));
  tainted[me * (OPERATIONS + 1) + number] = tainted[me * (OPERATIONS + 1) + number] || failed[peer];
  slices[number] = slices[number] | (1 << (peer * RANKS + me))
}

inline stage(me, piece) {
  values[buffer(me, piece)] = piece;
  sums[buffer(me, piece)] = 0
}

inline read_values(me, piece, peer) { assert(peer == me || values[buffer(peer, piece)] == piece) }

#if MISTAKE == 10
#define block(rank, piece) (((piece) + rank) % 2)
#else
#define block(rank, piece) ((piece) % 2 * 2 + ((piece) / 2 + rank) % 2)
#endif
inline fill(me, piece) { swapped[block(me, piece)] = (piece) * 2 + me }

inline read_block(piece, peer) { assert(swapped[block(peer, piece)] == (piece) * 2 + peer) }

inline read_sum(me, piece, peer) { assert(peer == me || sums[buffer(peer, piece)] == piece) }

proctype task(byte me) {
  byte number = 1, peer, piece = 1, last;
  do
  :: number > OPERATIONS -> break
  :: number <= OPERATIONS ->
    AWAIT(me, arrived, number);
    FOR_EACH_PEER(peer, STEP(me, look_at_row(me, number, peer)));
    if
    :: kind[number] == TINY ->
      FOR_EACH_PEER(peer, STEP(me, read_payload(number, peer)))
    :: kind[number] == ZERO ->
      FOR_EACH_PEER(peer, STEP(me, read_and_write_window(me, number, peer)))
    :: kind[number] == WHOLE ->
      STEP(me, stage(me, piece));
      STEP(me, pieces[me] = 2 * piece);
      AWAIT(me, pieces, 2 * piece);
      FOR_EACH_PEER(peer, STEP(me, read_values(me, piece, peer)));
      piece++
    :: kind[number] == SUM ->
      last = piece + PIECES - 1;
      STEP(me, stage(me, piece));
      STEP(me, pieces[me] = 2 * piece);
      do
      :: piece > last -> break
      :: piece <= last ->
        AWAIT(me, pieces, 2 * piece);
        FOR_EACH_PEER(peer, STEP(me, read_values(me, piece, peer)));
        STEP(me, sums[buffer(me, piece)] = piece);
        STEP(me, pieces[me] = 2 * piece + 1);
        if
        :: piece < last ->
          STEP(me, stage(me, piece + 1));
          STEP(me, pieces[me] = 2 * piece + 2)
        :: else -> skip
        fi;
        if
        :: MISTAKE == 4 -> AWAIT(me, pieces, 2 * piece)
        :: else -> AWAIT(me, pieces, 2 * piece + 1)
        fi;
        FOR_EACH_PEER(peer, STEP(me, read_sum(me, piece, peer)));
        piece++
      od
    :: kind[number] == SHARE ->
      last = piece + PIECES - 1;
      STEP(me, stage(me, piece));
      STEP(me, pieces[me] = 2 * piece);
      do
      :: piece > last -> break
      :: piece <= last ->
        if
        :: piece < last ->
          STEP(me, stage(me, piece + 1));
          STEP(me, pieces[me] = 2 * piece + 2)
        :: else -> skip
        fi;
        AWAIT(me, pieces, 2 * piece);
        FOR_EACH_PEER(peer, STEP(me, read_values(me, piece, peer)));
        piece++
      od
    :: kind[number] == SWAP ->
      last = piece + PIECES - 1;
      STEP(me, fill(me, piece));
      STEP(me, pieces[me] = 2 * piece);
      do
      :: piece > last -> break
      :: piece <= last ->
        if
        :: piece < last ->
          STEP(me, fill(me, (piece + 1)));
          STEP(me, pieces[me] = 2 * piece + 2)
        :: else -> skip
        fi;
        AWAIT(me, pieces, 2 * piece);
        STEP(me, read_block(piece, (1 - me)));
        piece++
      od
    fi;
    STEP(me, worked[me] = number);
    atomic { number++; last = 0 }
  od;
over:
  atomic { number = 0; peer = 0; piece = 0; last = 0 }
}

#if MISTAKE == 1
#define row_is_free(me, number) (true)
#elif MISTAKE == 2
#define row_is_free(me, number) (number <= ROWS || reached_by_others(worked, (number - ROWS), me))
#else
#define row_is_free(me, number) (number <= ROWS || reached(worked, (number - ROWS)))
#endif

#define has_ended(me, number) \
  (worked[me] >= number && (kind[number] != ZERO || MISTAKE == 3 || reached(worked, number)))
#define may_return(me, number) (has_ended(me, number) && (!broken || kind[number] != ZERO || MISTAKE == 5))

/* Operations leave the queue one after the other, so all up to that one are at their end. */
#define all_have_ended(me, number) (has_ended(me, number) && (number < 2 || has_ended(me, (number - 1))))
#define may_publish(me, earlier) \
  (earlier == 0 || MISTAKE == 8 || (MISTAKE == 9 && worked[me] >= earlier) || all_have_ended(me, earlier))

proctype user(byte me) {
  byte begun = 0;
  do
  :: atomic {
      !is_over(me) && begun < OPERATIONS && begun - returned[me] < DEPTH && row_is_free(me, begun + 1) &&
          may_publish(me, after[me * (OPERATIONS + 1) + begun + 1]) ->
      begun++;
      assert(is_at_rest(me, after[me * (OPERATIONS + 1) + begun]));  /* from now on its tensors are used */
      row[me * ROWS + begun % ROWS] = description(me, begun)
    }
    STEP(me, arrived[me] = begun)
  :: atomic {
      !is_over(me) && returned[me] < begun && may_return(me, (returned[me] + 1)) ->
      if
      :: kind[returned[me] + 1] == ZERO ->
        assert(((slices[returned[me] + 1] >> (me * RANKS)) & ((1 << RANKS) - 1)) == (1 << RANKS) - 1);
        assert(!tainted[me * (OPERATIONS + 1) + returned[me] + 1])
      :: else -> skip
      fi;
      assert(differing == 0 || returned[me] + 1 < differing || all_agree);
      returned[me]++  /* and the user changes his tensors */
    }
  :: atomic { !is_over(me) && broken -> failed[me] = true; break }
  :: atomic {
      !is_over(me) && MISTAKE != 7 && returned[me] < begun && dead_behind(worked, (returned[me] + 1)) ->
      broken = true;
      failed[me] = true;
      break
    }
#ifdef DEATH
  :: atomic { !is_over(me) && num_dead == 0 -> num_dead++; dead[me] = true; break }
#endif
#ifdef GIVE_UP
  :: atomic {
      !is_over(me) && returned[me] < begun && num_given_up == 0 ->
      num_given_up++;
      broken = true;
      failed[me] = true;
      break
    }
#endif
  :: is_over(me) -> break
  :: returned[me] == OPERATIONS -> break
  od;
over:
  begun = 0
}

init {
  byte i;
  atomic {
    i = 1;
    do
    :: i <= OPERATIONS && (KINDS & (1 << TINY)) -> kind[i] = TINY; i++
    :: i <= OPERATIONS && (KINDS & (1 << ZERO)) -> kind[i] = ZERO; i++
    :: i <= OPERATIONS && (KINDS & (1 << SUM)) -> kind[i] = SUM; i++
    :: i <= OPERATIONS && (KINDS & (1 << WHOLE)) -> kind[i] = WHOLE; i++
    :: i <= OPERATIONS && (KINDS & (1 << SHARE)) -> kind[i] = SHARE; i++
    :: i <= OPERATIONS && (KINDS & (1 << SWAP)) -> kind[i] = SWAP; i++
    :: i > OPERATIONS -> break
    od;
#ifdef DIFFER
    i = 1;
    do
    :: i < OPERATIONS -> i++
    :: differing = i -> break
    od;
    i = 1;
    do
    :: i < RANKS -> variant[i] = 0; i++
    :: i < RANKS -> variant[i] = 1; i++
    :: i == RANKS -> break
    od;
#endif
#ifdef OVERLAP
    byte number = 2;
    do
    :: number <= OPERATIONS ->
      i = 0;
      do
      :: i < RANKS -> after[i * (OPERATIONS + 1) + number] = 0; i++
      :: i < RANKS -> after[i * (OPERATIONS + 1) + number] = number - 1; i++
      :: i < RANKS && number > 2 -> after[i * (OPERATIONS + 1) + number] = number - 2; i++
      :: i == RANKS -> break
      od;
      number++
    :: number > OPERATIONS -> break
    od;
    number = 0;
#endif
    i = 0;
    do
    :: i < RANKS -> run user(i); run task(i); i++
    :: i == RANKS -> break
    od
  }
  /* The end of all: everybody has returned from everything, or has an error. */
  _nr_pr == 1;
  i = 0;
  do
  :: i < RANKS ->
    assert(dead[i] || failed[i] || returned[i] == OPERATIONS);
    assert(broken || num_dead > 0 || returned[i] == OPERATIONS);
    i++
  :: i == RANKS -> break
  od
}
